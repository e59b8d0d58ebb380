package memorystore

import (
	"cmp"
	"container/heap"
	"context"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

var _ driver.Store = (*Store)(nil)

// defaultOpenLimit is the size of a page of Open for a limit of 0.
const defaultOpenLimit = 1000

// Store is an [driver.Store] in memory. It is safe for concurrent use. Make it with [New].
type Store struct {
	now func() time.Time

	mu      sync.Mutex // guards the fields below and every entry
	entries map[driver.KeyID]*rules.Entry
	due     dueHeap
	retired map[string]bool   // lock domains
	fences  map[string]uint64 // the highest of each lock domain

	decisions []decided // of persons, oldest first
}

// Option configures a [Store]. A nil option is ignored.
type Option func(*Store)

// WithClock makes the store read the time from now. The function must be safe for
// concurrent use and should not go back. [time.Now] by default, and if now is nil.
func WithClock(now func() time.Time) Option {
	return func(s *Store) {
		if now != nil {
			s.now = now
		}
	}
}

// New returns an empty store. Nil options are ignored.
func New(opts ...Option) *Store {
	s := &Store{now: time.Now, entries: make(map[driver.KeyID]*rules.Entry), retired: make(map[string]bool), fences: make(map[string]uint64)}
	for _, opt := range opts {
		if opt != nil {
			opt(s)
		}
	}
	return s
}

// Visibility returns [driver.VisibilityProcess], because only this process sees the records.
func (s *Store) Visibility() driver.Visibility { return driver.VisibilityProcess }

// Ping returns ctx.Err().
func (s *Store) Ping(ctx context.Context) error { return ctx.Err() }

// Len returns the number of records. It includes expired records that no call has
// removed yet.
func (s *Store) Len() int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return len(s.entries)
}

// Get returns the record of id. The error is ctx.Err() or nil.
func (s *Store) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	return s.entry(id, now).Copy(), nil
}

// Issue makes a record in StateIssued. It returns an existing record unchanged.
// The error is ctx.Err() or nil.
func (s *Store) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (driver.Record, error) {
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	e := s.entry(id, now)
	if e == nil {
		e = rules.Issue(ttl, now)
		s.put(id, e)
	}
	return e.Copy(), nil
}

// ListOpen lists records whose attempt is open, oldest first. It looks at every record
// of the store. The error is ctx.Err() or nil.
func (s *Store) ListOpen(ctx context.Context, q driver.OpenQuery) (page driver.OpenPage, err error) {
	if err := ctx.Err(); err != nil {
		return page, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	for id, e := range s.entries {
		r := &e.Record
		if !r.State.Open() || q.State != driver.StateNone && q.State != r.State || now.Sub(r.Started) < q.OlderThan {
			continue
		}
		row := driver.OpenRecord{ID: id, Record: *r}
		if q.After == nil || row.Cursor().Compare(*q.After) > 0 {
			page.Records = append(page.Records, row)
		}
	}
	slices.SortFunc(page.Records, func(a, b driver.OpenRecord) int { return a.Cursor().Compare(b.Cursor()) })
	if q.Skip != nil {
		page.Records = slices.DeleteFunc(page.Records, func(r driver.OpenRecord) bool { return q.Skip(r.Cursor()) })
	}
	if limit := cmp.Or(max(q.Limit, 0), defaultOpenLimit); len(page.Records) > limit {
		page.Records = slices.Clone(page.Records[:limit])
		last := page.Records[limit-1].Cursor()
		page.Next = &last
	}
	for i := range page.Records {
		row := &page.Records[i]
		row.Record = s.entries[row.ID].Copy()
		if q.WithoutResponses {
			row.Record.Response = nil
		}
	}
	return page, nil
}

// RetireDomain records that a lock domain is dead. The error is ctx.Err() or nil.
func (s *Store) RetireDomain(ctx context.Context, domain string, _ driver.Decision) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.retired[domain] = true
	}
	return ctx.Err()
}

// DomainRetired reports whether a lock domain was retired. The error is ctx.Err() or nil.
func (s *Store) DomainRetired(ctx context.Context, domain string) (bool, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.retired[domain], ctx.Err()
}

// NoteFence keeps the highest fence of a lock domain. The error is ctx.Err() or nil.
func (s *Store) NoteFence(ctx context.Context, f driver.Fence) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if ctx.Err() == nil {
		s.fences[f.Domain] = max(s.fences[f.Domain], f.Token)
	}
	return ctx.Err()
}

// HighestFence returns the highest token that was noted of a lock domain. The error is ctx.Err()
// or nil.
func (s *Store) HighestFence(ctx context.Context, domain string) (uint64, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.fences[domain], ctx.Err()
}

// entry returns the entry of id as it is at time now, and nil without an entry.
func (s *Store) entry(id driver.KeyID, now time.Time) *rules.Entry {
	e := s.entries[id]
	left := e.At(now)
	switch left {
	case e:
	case nil:
		delete(s.entries, id)
	default:
		s.put(id, left)
	}
	return left
}

// put stores an entry and plans its removal at its deadline. It ignores nil.
func (s *Store) put(id driver.KeyID, e *rules.Entry) {
	if e == nil {
		return
	}
	s.entries[id] = e
	if at := e.Deadline(); !at.IsZero() {
		heap.Push(&s.due, due{at, id})
	}
}

// sweepMost bounds how many planned removals one call carries out.
const sweepMost = 16

// lock locks the store, carries out due removals, and returns the time. It reads the
// clock under the mutex, so the times in the records are in order.
func (s *Store) lock() time.Time {
	s.mu.Lock()
	now := s.now()
	for range sweepMost {
		if len(s.due) == 0 || s.due[0].at.After(now) {
			break
		}
		s.entry(heap.Pop(&s.due).(due).id, now)
	}
	return now
}

// due says when to look at a record again. The record may have changed since.
type due struct {
	at time.Time
	id driver.KeyID
}

// dueHeap is a [heap.Interface] with the earliest time first.
type dueHeap []due

func (h dueHeap) Len() int           { return len(h) }
func (h dueHeap) Less(i, j int) bool { return h[i].at.Before(h[j].at) }
func (h dueHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }
func (h *dueHeap) Push(x any)        { *h = append(*h, x.(due)) }
func (h *dueHeap) Pop() any {
	last := len(*h) - 1
	top := (*h)[last]
	*h = (*h)[:last]
	return top
}
