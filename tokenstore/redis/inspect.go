package redisstore

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var _ driver.StoreInspector = (*Store)(nil)

// Clock returns the time of Redis, which is that of the records. In a cluster it is the time of
// one of the servers. The error wraps driver.ErrUnavailable.
func (s *Store) Clock(ctx context.Context) (time.Time, error) {
	now, err := s.client.Time(ctx).Result()
	if err != nil {
		return now, s.failed(ctx, "clock", err)
	}
	return now, nil
}

// Replicas returns how many replicas are attached to the primary with the fewest, and how many
// have to acknowledge each Begin ([WithReplicas]), 0 by default. The error wraps
// driver.ErrUnavailable, or errors.ErrUnsupported if a server does not tell.
func (s *Store) Replicas(ctx context.Context) (attachedNow, wanted int, err error) {
	if s.replicas != nil {
		wanted = s.replicas.want
	}
	var mu sync.Mutex
	fewest := -1
	err = redisserver.EachPrimary(ctx, s.client, func(ctx context.Context, node *goredis.Client) error {
		info, err := node.Info(ctx, "replication").Result()
		if _, answered := err.(goredis.Error); answered { //nolint:errorlint // go-redis does not wrap a server's answer
			return fmt.Errorf("tokenstore/redis: replicas: %w", errors.ErrUnsupported)
		}
		mu.Lock()
		defer mu.Unlock()
		if n := attached(info); err == nil && (fewest < 0 || n < fewest) {
			fewest = n
		}
		return err
	})
	if err != nil && !errors.Is(err, errors.ErrUnsupported) {
		err = unavailable("replicas", err)
	}
	return max(fewest, 0), wanted, err
}

// scanned is how many keys Redis looks at in one step.
const scanned = 1000

// EachKey calls f with the ID of every record, until f returns false. It asks Redis in small
// steps, and Redis serves others between them. f is called by one goroutine at a time. The error
// wraps driver.ErrUnavailable, or is that of ctx.
func (s *Store) EachKey(ctx context.Context, f func(driver.KeyID) bool) error {
	ids, stop := make(chan driver.KeyID), make(chan struct{})
	scan, cancel := context.WithCancel(ctx)
	defer cancel()
	var failed error
	go func() {
		defer close(ids)
		failed = redisserver.EachPrimary(scan, s.client, func(ctx context.Context, node *goredis.Client) error {
			keys := node.Scan(ctx, 0, s.keys.prefix+":{*}:*", scanned).Iterator()
			for keys.Next(ctx) {
				id, ok := s.keys.idOf(keys.Val())
				if !ok {
					continue
				}
				select {
				case ids <- id:
				case <-stop:
					return nil
				}
			}
			return keys.Err()
		})
	}()
	for id := range ids {
		if !f(id) {
			close(stop)
			cancel()
			for range ids { // until the scan has ended
			}
			return nil
		}
	}
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case failed != nil:
		return fmt.Errorf("tokenstore/redis: keys: %w: %w", driver.ErrUnavailable, failed)
	}
	return nil
}

// idOf reads the key ID in the name of a record. It is false for any other key.
func (l *layout) idOf(key string) (driver.KeyID, bool) {
	at := strings.LastIndexByte(key, ':') + 1
	id, ok := parseID(key[at:])
	return id, ok && key == l.record(id)
}
