package redisstore

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Get returns the record of id, in one round trip. The error wraps idem.ErrNewerRecord,
// idem.ErrCorruptRecord, idem.ErrStoreLost or idem.ErrUnavailable.
func (s *Store) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	r, err := s.compared(ctx, "get", id, func(expected string) (reply, error) { return s.fetch(ctx, id, expected) })
	return r.record, err
}

// fetch reads a record, its response, the incarnation and the server's time. A missing
// record counts as lost if the shard lacks the expected incarnation.
func (s *Store) fetch(ctx context.Context, id idem.KeyID, expected string) (r reply, err error) {
	keys := s.keys.keys(id)
	clock := []any{"time"}
	if _, cluster := s.client.(*goredis.ClusterClient); cluster {
		clock = []any{"eval", "return redis.call('time')", 1, keys[0]} // the key brings it to the record's server
	}
	pipe := s.client.Pipeline()
	values := pipe.MGet(ctx, keys[0], keys[3], keys[2])
	now := pipe.Do(ctx, clock...)
	if _, err := pipe.Exec(ctx); err != nil {
		return r, s.failed(ctx, "get", err)
	}
	t, err := now.Int64Slice()
	if err != nil || len(t) != 2 {
		return r, unavailable("get", fmt.Errorf("unexpected time %v: %w", t, err))
	}
	found := values.Val()
	if r.record, err = decodeValues(found[0], found[1], time.Unix(t[0], t[1]*1000)); err != nil {
		return r, fmt.Errorf("tokenstore/redis: get: %w", err)
	}
	// A read-only store may expect no incarnation.
	if r.record.State == idem.StateNone && expected != "" && found[2] != expected {
		r.verdict = verdictLost
	}
	return r, nil
}

// Issue makes a record in StateIssued. It returns an existing record unchanged. The error
// wraps the same errors as that of [Store.Get], or is [ErrReadOnly].
func (s *Store) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	if err := s.mayWrite("issue"); err != nil {
		return idem.Record{}, err
	}
	r, err := s.compared(ctx, "issue", id, func(expected string) (reply, error) {
		return s.run(ctx, "issue", issueScript, s.keys.keys(id), expected, millis(ttl))
	})
	return r.record, err
}
