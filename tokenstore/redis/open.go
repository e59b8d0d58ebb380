package redisstore

import (
	"container/heap"
	"context"
	"fmt"
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

// inVain is how many records one call looks at, beside those that it returns: of
// another state, or in an open set by mistake.
const inVain = 1000

// Open lists records whose attempt is open, and those that cannot be read, oldest
// first. It merges the open sets of all shards, and reads little more records than
// the limit asks for. It is not one snapshot: a record that is begun or settled
// meanwhile may be there or not, and every other one is there. The error wraps
// idem.ErrUnavailable.
func (s *Store) Open(ctx context.Context, q idem.OpenQuery) (page idem.OpenPage, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultOpenLimit
	}
	m, err := s.newMerge(ctx, q, limit)
	if err != nil {
		return page, err
	}
	var last *idem.OpenCursor // of those looked at
	for left := limit + inVain; left > 0; {
		members, err := m.next(ctx, min(left, max(limit-len(page.Records), fewestRead)))
		if err != nil {
			return idem.OpenPage{}, err
		}
		if len(members) == 0 {
			return page, nil // there is no more
		}
		rows, err := s.fetchAll(ctx, members)
		if err != nil {
			return idem.OpenPage{}, err
		}
		left -= len(members)
		for i, r := range rows {
			if !selected(&r, q.State) {
				continue
			}
			page.Records = append(page.Records, r)
			if len(page.Records) < limit {
				continue
			}
			if i < len(rows)-1 || len(m.heads) > 0 {
				page.Next = members[i].cursor()
			}
			return page, nil
		}
		last = members[len(members)-1].cursor()
	}
	if len(m.heads) > 0 {
		page.Next = last
	}
	return page, nil
}

// selected reports whether a query for a state wants to see a row. What cannot be
// read may be in any.
func selected(r *idem.OpenRecord, state idem.State) bool {
	return r.Err != nil || r.Record.State.Open() && (state == idem.StateNone || state == r.Record.State)
}

// fetchAll reads records in one round trip per server.
func (s *Store) fetchAll(ctx context.Context, members []openMember) ([]idem.OpenRecord, error) {
	pipe := s.client.Pipeline()
	cmds := make([]*goredis.SliceCmd, len(members))
	for i, m := range members {
		cmds[i] = pipe.MGet(ctx, s.keys.record(m.id), s.keys.body(m.id))
	}
	if _, err := pipe.Exec(ctx); err != nil {
		return nil, s.failed(ctx, "open", err)
	}
	rows := make([]idem.OpenRecord, len(members))
	for i, cmd := range cmds {
		data, there := cmd.Val()[0].(string)
		body, apart := cmd.Val()[1].(string)
		if apart && body == "" {
			body = cutOff
		}
		// Open records do not expire, so that no time is needed.
		rec, err := decodeRecord(data, body, time.Time{})
		if there && data == "" {
			err = cannotRead(data)
		}
		if err != nil {
			rec, err = idem.Record{Started: members[i].started()}, fmt.Errorf("tokenstore/redis: open: %w", err)
		}
		rows[i] = idem.OpenRecord{ID: members[i].id, Record: rec, Err: err}
	}
	return rows, nil
}

// merge walks the open sets of all shards in the order of their scores.
type merge struct {
	store *Store
	age   string
	heads cursorHeap
}

// cursor is where the walk stands in one shard.
type cursor struct {
	shard   int
	members []openMember // fetched and not walked over yet
	page    int          // how many to fetch next
	more    bool         // there may be more to fetch, after:
	score   string
	member  string
}

type openMember struct {
	id    idem.KeyID
	score int64
}

func (o openMember) started() time.Time { return time.UnixMilli(o.score).UTC() }

func (o openMember) cursor() *idem.OpenCursor {
	return &idem.OpenCursor{Started: o.started(), ID: o.id}
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
	m := &merge{store: s, age: millis(q.OlderThan)}
	score, member := place(q.After)
	cursors := make([]*cursor, Shards)
	for i := range cursors {
		cursors[i] = &cursor{shard: i, page: limit/Shards*2 + 16, score: score, member: member}
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

// mostPages is how many pages of a shard are fetched in a row that hold no key ID.
const mostPages = 8

// fetch gets the next pages of some shards, until each has a member or has no
// more.
func (m *merge) fetch(ctx context.Context, cursors []*cursor) error {
	for range mostPages {
		if err := m.fetchPage(ctx, cursors); err != nil {
			return err
		}
		empty := cursors[:0:0]
		for _, c := range cursors {
			if len(c.members) == 0 && c.more {
				empty = append(empty, c)
			}
		}
		if cursors = empty; len(cursors) == 0 {
			return nil
		}
	}
	return fmt.Errorf("tokenstore/redis: open: the open set of shard %s is full of what is no key ID", shardName(cursors[0].shard))
}

func (m *merge) fetchPage(ctx context.Context, cursors []*cursor) error {
	pipe := m.store.client.Pipeline()
	cmds := make([]*goredis.Cmd, len(cursors))
	for i, c := range cursors {
		cmds[i] = pipe.Eval(ctx, openLua, []string{m.store.keys.open(c.shard)}, m.age, c.score, c.member, c.page)
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
		c.more = n == c.page
		c.page = min(2*c.page, defaultOpenLimit) // one shard may have them all
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

// next returns the next n members, fewer at the end.
func (m *merge) next(ctx context.Context, n int) ([]openMember, error) {
	var members []openMember
	for len(members) < n && len(m.heads) > 0 {
		c := m.heads[0]
		members = append(members, c.members[0])
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
	return members, nil
}

// cursorHeap is a [heap.Interface], the oldest member first.
type cursorHeap []*cursor

func (h cursorHeap) Len() int { return len(h) }
func (h cursorHeap) Less(i, j int) bool {
	return h[i].members[0].cursor().Compare(*h[j].members[0].cursor()) < 0
}
func (h cursorHeap) Swap(i, j int) { h[i], h[j] = h[j], h[i] }
func (h *cursorHeap) Push(x any)   { *h = append(*h, x.(*cursor)) }
func (h *cursorHeap) Pop() any {
	old := *h
	last := old[len(old)-1]
	*h = old[:len(old)-1]
	return last
}
