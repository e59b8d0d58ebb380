package redisstore

import (
	"context"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

// Get returns the record of id, in one round trip. The error wraps idem.ErrNewerRecord,
// idem.ErrCorruptRecord, idem.ErrStoreLost or idem.ErrUnavailable.
func (s *Store) Get(ctx context.Context, id idem.KeyID) (rec idem.Record, err error) {
	err = s.loss.Do(ctx, "get", redisserver.ShardOf(id), func(expected string) (string, bool, error) {
		r, err := fetch(ctx, s.client, s.keys.keys(id))
		if err != nil {
			return "", false, err
		}
		if rec, err = r.decode("get"); err != nil {
			return "", false, err
		}
		// A read-only store may expect no incarnation.
		lost := rec.State == idem.StateNone && expected != "" && r.incarnation != expected
		return r.incarnation, lost, nil
	})
	return rec, err
}

// fetch reads a record, its response, the incarnation and the server's time.
func fetch(ctx context.Context, client goredis.UniversalClient, keys []string) (reply, error) {
	if _, cluster := client.(*goredis.ClusterClient); cluster {
		return run(ctx, client, "get", getScript, keys)
	}
	pipe := client.Pipeline() // one server: cheaper than the script
	values := pipe.MGet(ctx, keys[0], keys[3], keys[2])
	clock := pipe.Time(ctx)
	if _, err := pipe.Exec(ctx); err != nil {
		return reply{}, unavailable("get", err)
	}
	r := reply{verdict: verdictGot, now: clock.Val()}
	record, there := values.Val()[0].(string)
	if there && record == "" {
		r.verdict = verdictUnreadable
	}
	r.record, r.body = record, bodyOf(values.Val()[1])
	r.incarnation, _ = values.Val()[2].(string)
	return r, nil
}

// bodyOf returns the value of a response's key. It tells an empty value from a missing key.
func bodyOf(value any) string {
	body, there := value.(string)
	if there && body == "" {
		return cutOff
	}
	return body
}

// Issue makes a record in StateIssued. It returns an existing record unchanged. The error
// wraps the same errors as that of [Store.Get], or is [ErrReadOnly].
func (s *Store) Issue(ctx context.Context, id idem.KeyID, ttl time.Duration) (rec idem.Record, err error) {
	if err := s.mayWrite("issue"); err != nil {
		return rec, err
	}
	err = s.loss.Do(ctx, "issue", redisserver.ShardOf(id), func(expected string) (string, bool, error) {
		r, err := run(ctx, s.client, "issue", issueScript, s.keys.keys(id), expected, millis(ttl))
		if err == nil {
			rec, err = r.decode("issue")
		}
		return r.lost(err)
	})
	return rec, err
}
