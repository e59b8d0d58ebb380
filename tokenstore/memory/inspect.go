package memorystore

import (
	"context"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

var (
	_ driver.StoreInspector = (*Store)(nil)
	_ driver.Forgetter      = (*Store)(nil)
)

// keptDecisions is the number of decisions that a store keeps.
const keptDecisions = 1000

// decided is a decision about a key.
type decided struct {
	id driver.KeyID
	driver.Decided
}

// keep notes the decision of a person. The caller has the lock.
func (s *Store) keep(id driver.KeyID, d driver.Decided) {
	if len(s.decisions) == keptDecisions {
		s.decisions = slices.Delete(s.decisions, 0, 1)
	}
	s.decisions = append(s.decisions, decided{id, d})
}

// Forget removes the stored response of a key. The error is ctx.Err() or nil.
func (s *Store) Forget(ctx context.Context, id driver.KeyID, d driver.Decision) (driver.Record, error) {
	if err := ctx.Err(); err != nil {
		return driver.Record{}, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	write, err := rules.Forget(s.entry(id, now))
	if write != nil && err == nil {
		s.keep(id, driver.Decided{At: now, Attempt: write.Record.Attempt.Number, State: driver.StateExpired, ID: driver.NewNonce(), Decision: d})
		s.put(id, write)
	}
	return s.entry(id, now).Copy(), err
}

// Clock returns the time of the store. The error is ctx.Err() or nil.
func (s *Store) Clock(ctx context.Context) (time.Time, error) { return s.now(), ctx.Err() }

// Decisions lists the decisions of people about a key, newest first. The store keeps the newest
// 1,000 of all keys. The error is ctx.Err() or nil.
func (s *Store) Decisions(ctx context.Context, id driver.KeyID) (list []driver.Decided, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, d := range slices.Backward(s.decisions) {
		if d.id == id {
			list = append(list, d.Decided)
		}
	}
	return list, ctx.Err()
}

// EachKey calls f with the ID of every record, until f returns false. The error is that of ctx.
func (s *Store) EachKey(ctx context.Context, f func(driver.KeyID) bool) error {
	s.mu.Lock()
	ids := make([]driver.KeyID, 0, len(s.entries))
	for id := range s.entries {
		ids = append(ids, id)
	}
	s.mu.Unlock()
	for _, id := range ids {
		if ctx.Err() != nil || !f(id) {
			break
		}
	}
	return ctx.Err()
}
