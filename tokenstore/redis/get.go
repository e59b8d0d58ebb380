package redisstore

import (
	"context"
	"errors"
	"fmt"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
)

// Get returns the record of id, in one round trip, or in two if the response has a key of
// its own. The error wraps driver.ErrNewerRecord, driver.ErrCorruptRecord, driver.ErrStoreLost or
// driver.ErrUnavailable.
func (s *Store) Get(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	r, err := s.compared(ctx, "get", id, func(expected string, now reading) (reply, error) { return s.fetch(ctx, id, expected, now) })
	return r.record, err
}

// fetch reads a record, its response, what proves a loss, and the server's time. A missing
// record counts as lost if the shard lacks the expected incarnation. It does not count as
// missing, and a result not as expired, if the clock has jumped.
func (s *Store) fetch(ctx context.Context, id driver.KeyID, expected string, now reading) (r reply, err error) {
	keys := s.keys.of(id)
	found, server, err := s.readFromPrimary(ctx, &keys)
	if err != nil {
		return r, err
	}
	r.now = server
	if r.record, err = decodeValues(found[0], found[4], server); err != nil {
		return r, fmt.Errorf("tokenstore/redis: get: %w", err)
	}
	evidence, _ := found[2].(string)
	switch {
	case r.record.State == driver.StateNone && expected != "" && found[1] != expected: // a read-only store may expect no incarnation
		r.verdict = verdictLost
	case !jumped(evidence, found[3] != nil, now, server):
	case r.record.State == driver.StateNone || r.record.State == driver.StateExpired:
		r.verdict, r.tripped = verdictJumped, tripped(evidence, found[3] != nil, server)
	default: // the record answers for itself, and nobody believes the time
		r.now = time.Time{}
	}
	return r, nil
}

// readFromPrimary reads record, incarnation, evidence of the clock, canary and response. A former
// primary may live on as a replica, and answers reads with what it had then. It refuses a write,
// so one that does nothing travels along. Other refusals of writes do not concern a read.
func (s *Store) readFromPrimary(ctx context.Context, keys *recordKeys) (found []any, now time.Time, err error) {
	found, now, err = s.read(ctx, keys, false, false)
	if err == nil && isApart(found[0]) {
		found, now, err = s.read(ctx, keys, true, false)
	}
	if errors.Is(err, errDemoted) {
		// Alone, and with the write in front, the client replaces the connection.
		found, now, err = s.read(ctx, keys, true, true)
	}
	if goredis.HasErrorPrefix(err, "TRYAGAIN") {
		found, now, err = s.readFromMovingSlot(ctx, keys, err)
	}
	if err != nil {
		err = s.failed(ctx, "get", err)
	}
	return found, now, err
}

// readFromMovingSlot reads a record while a cluster moves the slot of its shard. Some keys of the shard are at one
// server and some at another, so no command for several keys is answered. A record that is there answers for
// itself, and is read alone. Without one the answer is refused, the error that the caller has got.
func (s *Store) readFromMovingSlot(ctx context.Context, keys *recordKeys, refused error) (found []any, at time.Time, err error) {
	record, err := s.client.Get(ctx, keys.record).Result()
	if errors.Is(err, goredis.Nil) {
		return nil, at, refused
	}
	if err != nil {
		return nil, at, err
	}
	found = []any{record, nil, nil, nil, nil}
	if isApart(record) {
		body, err := s.client.Get(ctx, keys.body).Result()
		switch {
		case err == nil:
			found[4] = body
		case errors.Is(err, goredis.Nil):
			return nil, at, refused
		default:
			return nil, at, err
		}
	}
	now := s.time(ctx, &keys.record)
	if _ = s.client.Process(ctx, now); now.Err() != nil {
		return nil, at, fmt.Errorf("its time: %w", now.Err())
	}
	if r, err := decodeValues(record, found[4], now.Val()); err == nil && (r.State == driver.StateNone || r.State == driver.StateExpired) {
		return nil, at, refused // the clock may have jumped, and its evidence is elsewhere
	}
	return found, now.Val(), nil
}

// errNoAnswer says that a command has neither an answer nor an error. While a slot of a cluster moves, go-redis 9.23
// may send a command of a pipeline to two servers at once (pipelineReadCmds queues all commands again after TRYAGAIN, also
// those that it has queued because of ASK), and both write into it.
var errNoAnswer = errors.New("the client has no answer and no error")

// errDemoted says that a server is a replica now.
var errDemoted = errors.New("the server is a replica now")

// read makes one round trip. A response apart may be large, so it does not travel in a shared
// pipeline.
func (s *Store) read(ctx context.Context, keys *recordKeys, withBody, writeFirst bool) (found []any, at time.Time, err error) {
	// Pointers to texts in the commands save an allocation each.
	args := append(make([]any, 0, 6), "mget", &keys.record, &keys.shard.incarnation, &keys.shard.clock, &keys.shard.canary)
	if withBody {
		args = append(args, &keys.body)
	}
	values, now := goredis.NewSliceCmd(ctx, args...), s.time(ctx, args[1:]...)
	cmds := append(make([]goredis.Cmder, 0, 3), values, now)
	var write *goredis.IntCmd
	if s.confirmsRole {
		write = goredis.NewIntCmd(ctx, "del", &keys.shard.none)
		if cmds = append(cmds, write); writeFirst {
			cmds = []goredis.Cmder{write, values, now}
		}
	}
	if withBody {
		answered := func() (n int) {
			if all := values.Val(); len(all) > 4 {
				body, _ := all[4].(string)
				n = len(body)
			}
			return n
		}
		if err := s.bulk.Read(ctx, s.server(ctx, keys.record), answered, cmds...); err != nil {
			return nil, at, err
		}
	} else if err := s.lanes[keys.shard.number].Do(ctx, cmds...); err != nil {
		return nil, at, err
	}
	if write != nil && goredis.HasErrorPrefix(write.Err(), "READONLY") {
		return nil, at, errDemoted
	}
	if err := values.Err(); err != nil {
		return nil, at, err
	}
	if err := now.Err(); err != nil {
		return nil, at, fmt.Errorf("its time: %w", err)
	}
	if found = values.Val(); len(found) != len(args)-1 {
		return nil, at, errNoAnswer
	}
	if !withBody {
		found = append(found, nil)
	}
	return found, now.Val(), nil
}

// isApart reports whether a value is a record whose response has a key of its own.
func isApart(record any) bool {
	packed, _ := record.(string)
	return len(packed) > 3 && packed[3] == placeApart // after version, state and kind
}

// time asks for the time of the server that has some keys. In a pipeline with another command it names the keys of
// that one, so that a server that is moving their slot answers both alike. Otherwise go-redis may send one of them to
// two servers at once.
func (s *Store) time(ctx context.Context, keys ...any) *goredis.TimeCmd {
	if _, cluster := s.client.(*goredis.ClusterClient); !cluster {
		return goredis.NewTimeCmd(ctx, "time")
	}
	cmd := goredis.NewTimeCmd(ctx, append([]any{"eval", "return redis.call('time')", len(keys)}, keys...)...)
	cmd.SetFirstKeyPos(3)
	return cmd
}

// Issue makes a record in StateIssued. It returns an existing record unchanged. The error
// wraps the same errors as that of [Store.Get], or is [ErrReadOnly].
func (s *Store) Issue(ctx context.Context, id driver.KeyID, ttl time.Duration) (driver.Record, error) {
	if err := s.mayWrite("issue"); err != nil {
		return driver.Record{}, err
	}
	r, err := s.compared(ctx, "issue", id, func(expected string, _ reading) (reply, error) {
		return s.run(ctx, "issue", id, issueScript, redisscript.Call{Keys: s.keys.of(id).list(), Args: []string{expected, millis(ttl)}})
	})
	return r.record, err
}
