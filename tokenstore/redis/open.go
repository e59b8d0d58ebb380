package redis

import (
	"container/heap"
	"context"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// defaultOpenLimit is what a limit of 0 means.
const defaultOpenLimit = 1000

// fewestRead is how many records are read at once at least, so that a query
// for a rare state does not take a round trip for every record of another one.
const fewestRead = 64

// Open lists records whose attempt is open, oldest first. It merges the open
// sets of all shards, and reads little more records than the limit asks for. It
// is not one snapshot: a record that is begun or settled meanwhile may be there
// or not, and every other one is there. The error wraps idem.ErrUnavailable.
func (s *Store) Open(ctx context.Context, q idem.OpenQuery) ([]idem.OpenRecord, error) {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultOpenLimit
	}
	m, err := s.newMerge(ctx, q, limit)
	if err != nil {
		return nil, err
	}
	var found []idem.OpenRecord
	for len(found) < limit {
		ids, err := m.next(ctx, max(limit-len(found), fewestRead))
		if err != nil || len(ids) == 0 {
			return found, err
		}
		records, err := s.fetchAll(ctx, ids)
		if err != nil {
			return nil, err
		}
		for _, r := range records {
			if r.Record.State.Open() && (q.State == idem.StateNone || q.State == r.Record.State) {
				found = append(found, r)
			}
		}
	}
	return found[:min(limit, len(found))], nil
}

// fetchAll reads records in one round trip per server.
func (s *Store) fetchAll(ctx context.Context, ids []idem.KeyID) ([]idem.OpenRecord, error) {
	pipe := s.client.Pipeline()
	cmds := make([]*goredis.SliceCmd, len(ids))
	for i, id := range ids {
		cmds[i] = pipe.MGet(ctx, s.keys.record(id), s.keys.body(id))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, s.failed(ctx, "open", err)
	}
	records := make([]idem.OpenRecord, len(ids))
	for i, cmd := range cmds {
		var v [2]string
		for j := range v {
			v[j], _ = cmd.Val()[j].(string)
		}
		// Open records do not expire, so that no time is needed.
		rec, err := decodeRecord(v[0], v[1], time.Time{})
		if err != nil {
			return nil, err
		}
		records[i] = idem.OpenRecord{ID: ids[i], Record: rec}
	}
	return records, nil
}

// merge walks the open sets of all shards in the order of their scores.
type merge struct {
	store *Store
	age   string
	page  int
	heads cursorHeap
}

// cursor is where the walk stands in one shard.
type cursor struct {
	shard   int
	members []openMember // fetched and not walked over yet
	more    bool         // there may be more to fetch, after:
	score   string
	member  string
}

type openMember struct {
	id    idem.KeyID
	score int64
}

func (o openMember) cursor() idem.OpenCursor {
	return idem.OpenCursor{Started: time.UnixMilli(o.score), ID: o.id}
}

// place is where an open set is to be read from; nil: from the start.
func place(after *idem.OpenCursor) (score, member string) {
	if after == nil {
		return "-inf", ""
	}
	ms := after.Started.UnixMilli()
	if after.Started.After(time.UnixMilli(ms)) { // records start in whole ms
		return strconv.FormatInt(ms+1, 10), ""
	}
	return strconv.FormatInt(ms, 10), after.ID.String()
}

// newMerge fetches the first page of every shard, in one round trip per server.
func (s *Store) newMerge(ctx context.Context, q idem.OpenQuery, limit int) (*merge, error) {
	m := &merge{store: s, age: millis(q.OlderThan), page: limit/Shards*2 + 16}
	score, member := place(q.After)
	cursors := make([]*cursor, Shards)
	for i := range cursors {
		cursors[i] = &cursor{shard: i, score: score, member: member}
	}
	if err := m.fetch(ctx, cursors); err != nil {
		return nil, err
	}
	for _, c := range cursors {
		if len(c.members) > 0 {
			m.heads = append(m.heads, c)
		}
	}
	heap.Init(&m.heads)
	return m, nil
}

// fetch gets the next pages of some shards, until each has a member or has no
// more.
func (m *merge) fetch(ctx context.Context, cursors []*cursor) error {
	for len(cursors) > 0 {
		if err := m.fetchPage(ctx, cursors); err != nil {
			return err
		}
		empty := cursors[:0:0]
		for _, c := range cursors {
			if len(c.members) == 0 && c.more {
				empty = append(empty, c)
			}
		}
		cursors = empty
	}
	return nil
}

func (m *merge) fetchPage(ctx context.Context, cursors []*cursor) error {
	pipe := m.store.client.Pipeline()
	cmds := make([]*goredis.Cmd, len(cursors))
	for i, c := range cursors {
		cmds[i] = pipe.Eval(ctx, openLua, []string{m.store.keys.open(c.shard)}, m.age, c.score, c.member, m.page)
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return m.store.failed(ctx, "open", err)
	}
	for i, c := range cursors {
		got, err := cmds[i].StringSlice()
		if err != nil {
			return unavailable("open", err)
		}
		n := len(got) / 2
		c.more = n == m.page
		if n > 0 {
			c.member, c.score = got[2*n-2], got[2*n-1]
		}
		for j := range n {
			id, ok := idOfMember(got[2*j])
			score, err := strconv.ParseFloat(got[2*j+1], 64)
			if !ok || err != nil {
				continue
			}
			c.members = append(c.members, openMember{id: id, score: int64(score)})
		}
	}
	return nil
}

// next returns the next n IDs, fewer at the end.
func (m *merge) next(ctx context.Context, n int) ([]idem.KeyID, error) {
	var ids []idem.KeyID
	for len(ids) < n && len(m.heads) > 0 {
		c := m.heads[0]
		ids = append(ids, c.members[0].id)
		c.members = c.members[1:]
		if len(c.members) == 0 && c.more {
			if err := m.fetch(ctx, []*cursor{c}); err != nil {
				return nil, err
			}
		}
		if len(c.members) == 0 {
			heap.Pop(&m.heads)
		} else {
			heap.Fix(&m.heads, 0)
		}
	}
	return ids, nil
}

// cursorHeap is a [heap.Interface], the oldest member first.
type cursorHeap []*cursor

func (h cursorHeap) Len() int { return len(h) }
func (h cursorHeap) Less(i, j int) bool {
	return h[i].members[0].cursor().Compare(h[j].members[0].cursor()) < 0
}
func (h cursorHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *cursorHeap) Push(x any)   { *h = append(*h, x.(*cursor)) }
func (h *cursorHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
