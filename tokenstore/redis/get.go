package redisstore

import (
	"context"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Get returns the record of id, in one round trip, or in two if the response has a key of
// its own. The error wraps idem.ErrNewerRecord, idem.ErrCorruptRecord, idem.ErrStoreLost or
// idem.ErrUnavailable.
func (s *Store) Get(ctx context.Context, id idem.KeyID) (idem.Record, error) {
	r, err := s.compared(ctx, "get", id, func(expected string) (reply, error) { return s.fetch(ctx, id, expected) })
	return r.record, err
}

// fetch reads a record, its response, the incarnation and the server's time. A missing
// record counts as lost if the shard lacks the expected incarnation. A response apart may
// be large, so it does not travel in a shared pipeline.
func (s *Store) fetch(ctx context.Context, id idem.KeyID, expected string) (r reply, err error) {
	// Pointers to texts in the commands save an allocation each.
	keys := s.keys.of(id)
	values, now := goredis.NewSliceCmd(ctx, "mget", &keys.record, &keys.incarnation), s.time(ctx, &keys)
	if err := s.lanes[redisserver.ShardOf(id)].Do(ctx, values, now); err != nil {
		return r, s.failed(ctx, "get", err)
	}
	if isApart(values) {
		values, now = goredis.NewSliceCmd(ctx, "mget", &keys.record, &keys.incarnation, &keys.body), s.time(ctx, &keys)
		pipe := s.client.Pipeline()
		_ = pipe.BatchProcess(ctx, values, now)
		redisserver.Exec(ctx, pipe)
	}
	if err := values.Err(); err != nil {
		return r, s.failed(ctx, "get", err)
	}
	if err := now.Err(); err != nil {
		return r, unavailable("get", fmt.Errorf("its time: %w", err))
	}
	found, apart := values.Val(), any(nil)
	if len(found) > 2 {
		apart = found[2]
	}
	if r.record, err = decodeValues(found[0], apart, now.Val()); err != nil {
		return r, fmt.Errorf("tokenstore/redis: get: %w", err)
	}
	// A read-only store may expect no incarnation.
	if r.record.State == idem.StateNone && expected != "" && found[1] != expected {
		r.verdict = verdictLost
	}
	return r, nil
}

// isApart reports whether the first of the values is a record whose response has a key of
// its own.
func isApart(values *goredis.SliceCmd) bool {
	if values.Err() != nil {
		return false
	}
	packed, _ := values.Val()[0].(string)
	return len(packed) > 3 && packed[3] == placeApart // after version, state and kind
}

// time asks for the time of the server that has a record.
func (s *Store) time(ctx context.Context, keys *recordKeys) *goredis.TimeCmd {
	if _, cluster := s.client.(*goredis.ClusterClient); !cluster {
		return goredis.NewTimeCmd(ctx, "time")
	}
	cmd := goredis.NewTimeCmd(ctx, "eval", "return redis.call('time')", 1, &keys.record)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Issue makes a record in StateIssued. It returns an existing record unchanged. The error
// wraps the same errors as that of [Store.Get], or is [ErrReadOnly].
func (s *Store) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (idem.Record, error) {
	if err := s.mayWrite("issue"); err != nil {
		return idem.Record{}, err
	}
	r, err := s.compared(ctx, "issue", id, func(expected string) (reply, error) {
		return s.run(ctx, "issue", id, issueScript, redisscript.Call{Keys: s.keys.of(id).list(), Args: []string{expected, millis(ttl)}})
	})
	return r.record, err
}
