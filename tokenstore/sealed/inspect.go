package sealed

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var (
	_ driver.StoreInspector = (*Store)(nil)
	_ driver.Forgetter      = (*Store)(nil)
)

// Forget asks the store below to remove a stored response. It needs no key for that. The error wraps
// errors.ErrUnsupported if that is no [driver.Forgetter].
func (s *Store) Forget(ctx context.Context, id driver.KeyID, d driver.Decision) (driver.Record, error) {
	below, ok := s.wrapped.(driver.Forgetter)
	if !ok {
		return driver.Record{}, fmt.Errorf("tokenstore/sealed: the store below removes no responses: %w", errors.ErrUnsupported)
	}
	rec, err := below.Forget(ctx, id, d)
	if err == nil {
		s.warn(ctx, "forget", id, s.open(id, &rec))
	}
	return rec, err
}

// inspector is the store below. The error wraps errors.ErrUnsupported.
func (s *Store) inspector() (driver.StoreInspector, error) {
	if in, ok := s.wrapped.(driver.StoreInspector); ok {
		return in, nil
	}
	return nil, fmt.Errorf("tokenstore/sealed: the store below tells operators nothing: %w", errors.ErrUnsupported)
}

// Clock asks the store below. The error wraps errors.ErrUnsupported if that is no
// [driver.StoreInspector].
func (s *Store) Clock(ctx context.Context) (time.Time, error) {
	in, err := s.inspector()
	if err != nil {
		return time.Time{}, err
	}
	return in.Clock(ctx)
}

// Decisions asks the store below. The error is as for [Store.Clock].
func (s *Store) Decisions(ctx context.Context, id driver.KeyID) ([]driver.Decided, error) {
	in, err := s.inspector()
	if err != nil {
		return nil, err
	}
	return in.Decisions(ctx, id)
}

// EachKey asks the store below. The error is as for [Store.Clock].
func (s *Store) EachKey(ctx context.Context, f func(driver.KeyID) bool) error {
	in, err := s.inspector()
	if err != nil {
		return err
	}
	return in.EachKey(ctx, f)
}

// Replicas asks the store below how many replicas are attached, and how many have to acknowledge
// an attempt. The error wraps errors.ErrUnsupported if that store does not tell.
func (s *Store) Replicas(ctx context.Context) (attached, wanted int, err error) {
	in, ok := s.wrapped.(interface {
		Replicas(ctx context.Context) (attached, wanted int, err error)
	})
	if !ok {
		return 0, 0, fmt.Errorf("tokenstore/sealed: the store below does not tell of replicas: %w", errors.ErrUnsupported)
	}
	return in.Replicas(ctx)
}
