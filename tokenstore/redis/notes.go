package redisstore

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// retirement is the note on a retired lock domain, for people.
type retirement struct {
	By     string    `json:"by"`
	Reason string    `json:"reason,omitempty"`
	At     time.Time `json:"at"` // by the caller's clock
}

// RetireDomain records that a lock domain is dead. The store keeps the first decision. The
// error wraps driver.ErrUnavailable if Redis could not be asked.
func (s *Store) RetireDomain(ctx context.Context, domain string, d driver.Decision) error {
	if domain == "" {
		return errors.New("tokenstore/redis: retire: no domain")
	}
	if err := s.mayWrite("retire", domain, d.By); err != nil {
		return err
	}
	data, err := json.Marshal(retirement{By: d.By, Reason: d.Reason, At: time.Now().UTC()})
	if err != nil {
		return fmt.Errorf("tokenstore/redis: retire: %w", err)
	}
	return s.failed(ctx, "retire", s.client.HSetNX(ctx, s.keys.retired(), domain, data).Err())
}

// DomainRetired reports whether a lock domain was retired. The error wraps driver.ErrUnavailable.
func (s *Store) DomainRetired(ctx context.Context, domain string) (bool, error) {
	retired, err := s.client.HExists(ctx, s.keys.retired(), domain).Result()
	return retired, s.failed(ctx, "retired", err)
}

// NoteFence keeps the highest fence of a lock domain. The error wraps driver.ErrUnavailable if Redis
// could not be asked.
func (s *Store) NoteFence(ctx context.Context, f driver.Fence) error {
	if err := s.mayWrite("note fence", f.Domain); err != nil {
		return err
	}
	return s.failed(ctx, "note fence", fenceScript.Run(ctx, s.client, []string{s.keys.fences()}, f.Domain, strconv.FormatUint(f.Token, 10)).Err())
}

// HighestFence returns the highest token that was noted of a lock domain. The error wraps
// driver.ErrUnavailable.
func (s *Store) HighestFence(ctx context.Context, domain string) (uint64, error) {
	token, err := s.client.HGet(ctx, s.keys.fences(), domain).Uint64()
	if errors.Is(err, goredis.Nil) {
		return 0, nil
	}
	return token, s.failed(ctx, "highest fence", err)
}

// DeclareSealed notes that services encrypt the responses stored here. Tools without a
// key ring read the note. A service that encrypts calls it when it starts. It is safe to
// repeat, and the first time is kept. A Redis that loses its data loses the note until
// the next service starts. The error wraps driver.ErrUnavailable.
func (s *Store) DeclareSealed(ctx context.Context) error {
	if err := s.mayWrite("declare sealed"); err != nil {
		return err
	}
	return s.failed(ctx, "declare sealed", s.client.SetNX(ctx, s.keys.sealed(), time.Now().UTC().Format(time.RFC3339), 0).Err())
}

// Sealed reports whether a service called [Store.DeclareSealed]. The error wraps
// driver.ErrUnavailable.
func (s *Store) Sealed(ctx context.Context) (bool, error) {
	n, err := s.client.Exists(ctx, s.keys.sealed()).Result()
	return n > 0, s.failed(ctx, "sealed", err)
}
