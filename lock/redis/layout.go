package redislock

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Shards is the number of parts that the locks are spread over. It is part of
// the layout: instances that differ in it do not see each other's locks. All
// that one script touches lies in one slot of a cluster, so every shard has a
// counter of fences and a domain of its own.
const Shards = 64

const hexDigits = "0123456789abcdef"

// layout names the keys.
type layout struct{ prefix string }

// shardOf is the shard that a key ID belongs to.
func shardOf(id idem.KeyID) int { return int(id[0]) % Shards }

// base is what all keys of a shard start with.
func (l layout) base(shard int) string {
	return l.prefix + ":{" + string([]byte{hexDigits[shard>>4], hexDigits[shard&15]}) + "}:"
}

func (l layout) lock(id idem.KeyID) string { return l.base(shardOf(id)) + "lock:" + id.String() }
func (l layout) fences(shard int) string   { return l.base(shard) + "fences" }

// ping is a key for [Locker.Ping] to write to.
func (l layout) ping(shard int) string { return l.base(shard) + "lock:ping" }

// newUUID returns a random UUID (RFC 9562, section 5.4).
func newUUID() string {
	u := idem.NewNonce()
	u[6] = u[6]&0x0f | 0x40
	u[8] = u[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", u[0:4], u[4:6], u[6:8], u[8:10], u[10:16])
}
