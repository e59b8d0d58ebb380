package redisstore

import (
	"encoding/hex"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
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
type shardNames struct {
	number                                                  int
	base, open, incarnation, decisions, clock, canary, none string
}

func newLayout(prefix string) *layout {
	l := &layout{prefix: prefix}
	for shard := range l.shards {
		base := redisserver.Base(prefix, shard)
		l.shards[shard] = shardNames{
			number: shard, base: base, open: base + "open", incarnation: base + "incarnation", decisions: base + "decisions",
			clock: base + "clock", canary: base + "canary", none: base + "none",
		}
	}
	return l
}

func (l *layout) record(id driver.KeyID) string { return l.of(id).record }
func (l *layout) body(id driver.KeyID) string   { return l.of(id).body }
func (l *layout) open(shard int) string         { return l.shards[shard].open }
func (l *layout) incarnation(shard int) string  { return l.shards[shard].incarnation }
func (l *layout) decisions(shard int) string    { return l.shards[shard].decisions }
func (l *layout) clock(shard int) string        { return l.shards[shard].clock }
func (l *layout) canary(shard int) string       { return l.shards[shard].canary }
func (l *layout) retired() string               { return l.prefix + ":retired" }
func (l *layout) fences() string                { return l.prefix + ":fences" }
func (l *layout) sealed() string                { return l.prefix + ":sealed" }

// recordKeys are the keys for the calls about one record. body is the key of the response, if
// that is apart.
type recordKeys struct {
	record, body string
	shard        *shardNames
}

// of makes the names of record and body from one text.
func (l *layout) of(id driver.KeyID) recordKeys {
	shard := &l.shards[redisserver.ShardOf(id)]
	text := append(make([]byte, 0, 128), shard.base...)
	body := string(append(hex.AppendEncode(text, id[:]), bodySuffix...))
	return recordKeys{record: strings.TrimSuffix(body, bodySuffix), body: body, shard: shard}
}

// bodySuffix follows the key of the record in the key of its response.
const bodySuffix = ":body"

// list is KEYS of every script. Some have more.
func (k recordKeys) list(more ...string) []string {
	list := append(make([]string, 0, 6+len(more)), k.record, k.shard.open, k.shard.incarnation, k.body, k.shard.clock, k.shard.canary)
	return append(list, more...)
}

// member is the member of the open set for the record, which is the end of its key.
func (k recordKeys) member() string {
	return k.record[len(k.record)-hex.EncodedLen(len(driver.KeyID{})):]
}

// parseID reads a key ID in hexadecimal, as the open sets hold it.
func parseID(s string) (id driver.KeyID, ok bool) {
	if len(s) != hex.EncodedLen(len(id)) {
		return id, false
	}
	_, err := hex.Decode(id[:], []byte(s))
	return id, err == nil
}
