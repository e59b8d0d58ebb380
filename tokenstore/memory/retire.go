package memorystore

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Retire records that a lock domain is dead. The error is ctx.Err() or nil.
func (s *Store) Retire(ctx context.Context, domain string, _ idem.Decision) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s.retired.Store(domain, true)
	return nil
}

// Retired reports whether a lock domain was retired. The error is ctx.Err() or
// nil.
func (s *Store) Retired(ctx context.Context, domain string) (bool, error) {
	_, retired := s.retired.Load(domain)
	return retired, ctx.Err()
}
