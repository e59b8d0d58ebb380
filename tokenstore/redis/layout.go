package redisstore

import (
	"encoding/hex"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Shards is the number of parts that the records are spread over. It is part of the
// layout and cannot change once records exist.
const Shards = redisserver.Shards

// layout names the keys. The package comment has the list. Make it with newLayout.
type layout struct {
	prefix string
	shards [Shards]shardNames
}

// shardNames are the names that all calls of a shard share. Every request needs them.
type shardNames struct{ base, open, incarnation, decisions string }

func newLayout(prefix string) *layout {
	l := &layout{prefix: prefix}
	for shard := range l.shards {
		base := redisserver.Base(prefix, shard)
		l.shards[shard] = shardNames{base, base + "open", base + "incarnation", base + "decisions"}
	}
	return l
}

func (l *layout) record(id idem.KeyID) string  { return strings.TrimSuffix(l.body(id), bodySuffix) }
func (l *layout) open(shard int) string        { return l.shards[shard].open }
func (l *layout) incarnation(shard int) string { return l.shards[shard].incarnation }
func (l *layout) decisions(shard int) string   { return l.shards[shard].decisions }
func (l *layout) retired() string              { return l.prefix + ":retired" }
func (l *layout) sealed() string               { return l.prefix + ":sealed" }

// bodySuffix follows the key of a record in the key of its response, if that is apart.
const bodySuffix = ":body"

func (l *layout) body(id idem.KeyID) string {
	base := l.shards[redisserver.ShardOf(id)].base
	key := hex.AppendEncode(append(make([]byte, 0, 128), base...), id[:])
	return string(append(key, bodySuffix...))
}

// keys of a record, in the order of KEYS of every script.
func (l *layout) keys(id idem.KeyID) []string {
	names, body := &l.shards[redisserver.ShardOf(id)], l.body(id)
	return []string{strings.TrimSuffix(body, bodySuffix), names.open, names.incarnation, body}
}

// memberOf is the member of the open set for a record, which is the end of its key.
func memberOf(record string) string { return record[len(record)-hex.EncodedLen(len(idem.KeyID{})):] }

// parseID reads a key ID in hexadecimal, as the open sets hold it.
func parseID(s string) (id idem.KeyID, ok bool) {
	if len(s) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}
