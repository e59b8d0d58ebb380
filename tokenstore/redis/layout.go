package redisstore

import (
	"encoding/hex"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Shards is the number of parts that the records are spread over. It is part of
// the layout and cannot be changed once records exist.
//
// In a cluster the shards are what can be spread: 64 keep a handful of primaries
// busy alike. More would not make a single server faster, and every shard has an
// incarnation, all of which have to fit into one small document of the witness
// and one MGET of Ping.
const Shards = 64

const hexDigits = "0123456789abcdef"

// layout names the keys.
type layout struct{ prefix string }

// shardOf is the shard that a key ID belongs to.
func shardOf(id idem.KeyID) int { return int(id[0]) % Shards }

// base is what all keys of a shard start with.
func (l layout) base(shard int) string {
	return l.prefix + ":{" + shardName(shard) + "}:"
}

func shardName(shard int) string {
	return string([]byte{hexDigits[shard>>4], hexDigits[shard&15]})
}

func (l layout) record(id idem.KeyID) string      { return l.base(shardOf(id)) + id.String() }
func (l layout) body(id idem.KeyID) string        { return l.record(id) + ":body" }
func (l layout) open(shard int) string            { return l.base(shard) + "open" }
func (l layout) incarnation(shard int) string     { return l.base(shard) + "incarnation" }
func (l layout) decisions(shard int) string       { return l.base(shard) + "decisions" }
func (l layout) retired() string                  { return l.prefix + ":retired" }
func (l layout) sealed() string                   { return l.prefix + ":sealed" }
func (l layout) member(id idem.KeyID) string      { return id.String() }
func idOfMember(member string) (idem.KeyID, bool) { return parseID(member) }

func parseID(s string) (id idem.KeyID, ok bool) {
	if len(s) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}

// keys of a record, in the order in which every script takes them.
func (l layout) keys(id idem.KeyID) []string {
	base := l.base(shardOf(id))
	record := base + id.String()
	return []string{record, base + "open", base + "incarnation", record + ":body"}
}
