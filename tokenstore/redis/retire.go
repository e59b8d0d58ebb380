package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// retirement is what is kept of a retired lock domain, for people.
type retirement struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // by the clock of whoever retired it
}

// Retire records that a lock domain is dead. The first decision is kept. The
// error wraps idem.ErrUnavailable where Redis could not be asked.
func (s *Store) Retire(ctx context.Context, domain string, d idem.Decision) error {
	if domain == "" {
		return errors.New("tokenstore/redis: retire: no domain")
	}
	if err := errors.Join(
		s.mayWrite("retire"),
		checkLength("retire", "domain", domain, maxDomain),
		checkLength("retire", "decision's author", d.By, maxAuthor),
		checkLength("retire", "decision's reason", d.Reason, maxReason),
	); err != nil {
		return err
	}
	data, err := json.Marshal(retirement{By: d.By, Reason: d.Reason, At: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("tokenstore/redis: retire: %w", err)
	}
	if err := s.client.HSetNX(ctx, s.keys.retired(), domain, data).Err(); err != nil {
		return s.failed(ctx, "retire", err)
	}
	return nil
}

// Retired reports whether a lock domain was retired. The error wraps
// idem.ErrUnavailable.
func (s *Store) Retired(ctx context.Context, domain string) (bool, error) {
	retired, err := s.client.HExists(ctx, s.keys.retired(), domain).Result()
	if err != nil {
		return false, s.failed(ctx, "retired", err)
	}
	return retired, nil
}
