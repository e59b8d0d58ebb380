package memorystore

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/driver/rules"
)

// Begin starts an attempt. [driver.Store] has the table. The error wraps
// driver.ErrStaleFence, or is ctx.Err().
func (s *Store) Begin(ctx context.Context, id driver.KeyID, req driver.BeginRequest) (res driver.BeginResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	write, res, err := rules.Begin(s.entry(id, now), req, now)
	s.put(id, write)
	if err != nil {
		err = fmt.Errorf("tokenstore/memory: %w", err)
	}
	return res, err
}

// Abort undoes a Begin, or makes the store refuse it if it arrives later. The error
// is ctx.Err() or nil.
func (s *Store) Abort(ctx context.Context, id driver.KeyID, req driver.BeginRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now := s.lock()
	defer s.mu.Unlock()
	s.put(id, rules.Abort(s.entry(id, now), req, now))
	return nil
}

// Settle closes an attempt or marks it unknown. It repairs a record that is
// missing or older than the attempt. [driver.Store] has the table. The error is
// ctx.Err(), or wraps driver.ErrResponseInvalid.
func (s *Store) Settle(ctx context.Context, id driver.KeyID, st driver.Settlement) (res driver.SettleResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	write, res, err := rules.Settle(s.entry(id, now), &st, now)
	if write != nil && write.Record.Decision.ByPerson() {
		s.keep(id, driver.Decided{At: now, Attempt: st.Attempt.Number, State: st.State, ID: st.ID, Decision: st.Decision})
	}
	s.put(id, write)
	return res, err
}
