package memorystore

import (
	"context"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem"
)

// defaultOpenLimit is what a limit of 0 means.
const defaultOpenLimit = 1000

// Open lists records whose attempt is open, oldest first. It looks at every
// record that is not closed, one shard at a time: it is for sweepers and operators.
func (s *Store) Open(ctx context.Context, q idem.OpenQuery) (page idem.OpenPage, err error) {
	limit := q.Limit
	if limit <= 0 {
		limit = defaultOpenLimit
	}
	found, more := []idem.OpenRecord(nil), false
	for i := range s.shards {
		if err := ctx.Err(); err != nil {
			return page, err
		}
		found = s.shards[i].open(found, q, s)
		if len(found) <= limit {
			continue
		}
		more = true
		slices.SortFunc(found, func(a, b idem.OpenRecord) int { return a.Cursor().Compare(b.Cursor()) })
		clear(found[limit:])
		found = found[:limit]
	}
	slices.SortFunc(found, func(a, b idem.OpenRecord) int { return a.Cursor().Compare(b.Cursor()) })
	page.Records = found
	if more {
		last := found[len(found)-1].Cursor()
		page.Next = &last
	}
	return page, nil
}

// open appends the shard's records that q selects.
func (sh *shard) open(found []idem.OpenRecord, q idem.OpenQuery, s *Store) []idem.OpenRecord {
	sh.mu.Lock()
	defer sh.mu.Unlock()
	now := sh.normal(s.now())
	for _, e := range sh.live {
		if e == nil {
			continue
		}
		r := &e.record
		if !r.State.Open() || q.State != idem.StateNone && q.State != r.State {
			continue
		}
		if now.Sub(r.Started) < q.OlderThan {
			continue
		}
		row := idem.OpenRecord{ID: e.id, Record: *r}
		if q.After == nil || row.Cursor().Compare(*q.After) > 0 {
			found = append(found, row)
		}
	}
	return found
}
