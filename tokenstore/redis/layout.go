package redisstore

import (
	"encoding/hex"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Shards is the number of parts that the records are spread over. It is part of the
// layout and cannot change once records exist.
const Shards = redisserver.Shards

// layout names the keys. The package comment has the list.
type layout struct{ prefix string }

func (l layout) base(shard int) string { return redisserver.Base(l.prefix, shard) }

func (l layout) record(id idem.KeyID) string  { return l.base(redisserver.ShardOf(id)) + id.String() }
func (l layout) body(id idem.KeyID) string    { return l.record(id) + ":body" }
func (l layout) open(shard int) string        { return l.base(shard) + "open" }
func (l layout) incarnation(shard int) string { return l.base(shard) + "incarnation" }
func (l layout) decisions(shard int) string   { return l.base(shard) + "decisions" }
func (l layout) retired() string              { return l.prefix + ":retired" }
func (l layout) sealed() string               { return l.prefix + ":sealed" }

// keys of a record, in the order of KEYS of every script.
func (l layout) keys(id idem.KeyID) []string {
	shard := redisserver.ShardOf(id)
	return []string{l.record(id), l.open(shard), l.incarnation(shard), l.body(id)}
}

// parseID reads a key ID in hexadecimal, as the open sets hold it.
func parseID(s string) (id idem.KeyID, ok bool) {
	if len(s) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}
