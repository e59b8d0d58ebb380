package sealed

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.LockingStore = (*Store)(nil)

// errTakesNoLocks answers a caller that did not heed LockSpace.
var errTakesNoLocks = fmt.Errorf("tokenstore/sealed: the store below takes no locks: %w", errors.ErrUnsupported)

// LockSpace is that of the store below, or nil if that store is no [driver.LockingStore].
func (s *Store) LockSpace() any {
	if l, ok := s.wrapped.(driver.LockingStore); ok {
		return l.LockSpace()
	}
	return nil
}

// BeginLocked returns the record with its response opened. It is the only look at the record of a repeat, so the error for a
// response that cannot be opened is that of Get. The call has had no effect then.
func (s *Store) BeginLocked(ctx context.Context, id driver.KeyID, req driver.BeginRequest, lock driver.OfferedLock) (driver.LockedBegin, error) {
	l, ok := s.wrapped.(driver.LockingStore)
	if !ok {
		return driver.LockedBegin{}, errTakesNoLocks
	}
	res, err := l.BeginLocked(ctx, id, req, lock)
	res.Record, err = s.opened(ctx, "begin", id, res.Record, err)
	return res, err
}

// SettleUnlock seals the response as Settle does.
func (s *Store) SettleUnlock(ctx context.Context, id driver.KeyID, st driver.Settlement, lock driver.OfferedLock) (driver.SettleResult, error) {
	l, ok := s.wrapped.(driver.LockingStore)
	if !ok {
		return driver.SettleResult{}, errTakesNoLocks
	}
	return s.settle(ctx, id, st, func(st driver.Settlement) (driver.SettleResult, error) { return l.SettleUnlock(ctx, id, st, lock) })
}
