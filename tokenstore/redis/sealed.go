package redisstore

import (
	"context"
	"time"
)

// DeclareSealed notes that responses are stored encrypted here, for tools that
// have no ring. Services that encrypt call it when they start; it is safe to
// repeat, and the first time is kept. The note goes with a Redis that loses its
// data, until the next service starts. The error wraps idem.ErrUnavailable.
func (s *Store) DeclareSealed(ctx context.Context) error {
	if err := s.mayWrite("declare sealed"); err != nil {
		return err
	}
	// The value is for people, by the clock of whoever declared it.
	if err := s.client.SetNX(ctx, s.keys.sealed(), time.Now().UTC().Format(time.RFC3339), 0).Err(); err != nil {
		return s.failed(ctx, "declare sealed", err)
	}
	return nil
}

// Sealed reports whether responses are stored encrypted here, as far as
// [Store.DeclareSealed] was called. The error wraps idem.ErrUnavailable.
func (s *Store) Sealed(ctx context.Context) (bool, error) {
	n, err := s.client.Exists(ctx, s.keys.sealed()).Result()
	if err != nil {
		return false, s.failed(ctx, "sealed", err)
	}
	return n > 0, nil
}
