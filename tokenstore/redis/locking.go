package redisstore

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/redislocks"
	"github.com/idemkeeper/idemkeeper/internal/redisscript"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var _ driver.LockingStore = (*Store)(nil)

var (
	beginLockedScript = redisscript.New(
		redisscript.Text(lua, "lua/clock.lua"), redisscript.Text(redislocks.Lua, redislocks.Acquire), redisscript.Text(lua, "lua/begin_locked.lua"),
		redisscript.Text(lua, beginFiles[1:]...), redisscript.Text(lua, "lua/begin_unlock.lua"))
	settleLockedScript = redisscript.New(
		redisscript.Text(lua, "lua/clock.lua", "lua/settle_locked.lua"),
		redisscript.Text(lua, settleFiles[1:]...), redisscript.Text(lua, "lua/settle_unlock.lua"))
)

// Verdicts of begin_locked.lua beside those of begin.lua.
const (
	verdictLocked = "locked"
	verdictLate   = "late"
)

// LockSpace implements [driver.LockingStore]. It is that of a locker of lock/redis on the same client and with the same
// prefix.
func (s *Store) LockSpace() any { return redislocks.Space(s.client, s.keys.prefix) }

// BeginLocked implements [driver.LockingStore]. It takes one round trip, and two if it finds a response
// that has a key of its own. It only reads while the time of the server is not known, which is before the first
// answer and after a jump.
func (s *Store) BeginLocked(ctx context.Context, id driver.KeyID, req driver.BeginRequest, lock driver.OfferedLock) (res driver.LockedBegin, err error) {
	if err := s.mayWrite("begin", "", req.Route); err != nil {
		return res, err
	}
	last := s.lastMoment(ctx, redisserver.ShardOf(id))
	if last.IsZero() || s.evicts.Refuse(ctx) != nil {
		res.Record, err = s.Get(ctx, id)
		return res, err
	}
	s.loss.Reread(ctx)
	keys := s.keys.of(id)
	call := redisscript.Call{Keys: keys.list(s.locks.Lock(id), s.locks.Fences(keys.shard.number))}
	if s.confirmsRole {
		call.Keys = append(call.Keys, keys.shard.none)
	}
	r, err := s.compared(ctx, "begin", id, func(expected string, now reading) (reply, error) {
		owner, holder, ttl := redislocks.Args(lock)
		call.Args = []string{
			expected, keys.member(), string([]byte{byte(req.Kind)}), string(req.Nonce[:]),
			"", req.Route, packFingerprint(req.Fingerprint), "", "",
			packTTLs(req.ResultTTL, req.KeyTTL), now.packed(), owner, holder, ttl, packTime(last),
		}
		return s.runBegin(ctx, id, beginLockedScript, call)
	})
	if err != nil {
		return res, err
	}
	res.Record = r.record
	switch r.verdict {
	case verdictBegun:
		res.Begun = true
		if res.Replaced, err = replacedBy(r.packed); err != nil {
			err = fmt.Errorf("tokenstore/redis: begin: %w", err)
		}
	case verdictLocked:
		res.Locked = true
	case verdictLate:
		res.Record, err = s.Get(ctx, id)
	}
	return res, err
}

// lastMoment is the server's time when a call of ctx must have come, or the zero time if that is not known. Nobody waits
// for the answer of a later call.
func (s *Store) lastMoment(ctx context.Context, shard int) time.Time {
	now := s.clocks.read(shard)
	deadline, ok := ctx.Deadline()
	if now.last.server.IsZero() || !ok {
		return time.Time{}
	}
	return now.last.server.Add(now.lease.Sub(now.last.answered) + time.Until(deadline) + lateBy)
}

// lateBy allows for an estimate of the server's time that is behind by the way back of an answer. It is never ahead, because it counts
// from when the answer was there, however long the call had been on its way.
const lateBy = 100 * time.Millisecond

// SettleUnlock implements [driver.LockingStore]. It takes one round trip.
func (s *Store) SettleUnlock(ctx context.Context, id driver.KeyID, st driver.Settlement, lock driver.OfferedLock) (res driver.SettleResult, err error) {
	keys := s.keys.of(id)
	call := redisscript.Call{Keys: keys.list(s.locks.Lock(id))}
	if call.Args, err = s.settleArgs(keys.member(), &st, s.clocks.read(keys.shard.number)); err != nil {
		return res, err
	}
	call.Args = append(call.Args, lock.Owner)
	return s.settle(ctx, id, settleLockedScript, call, st.Response)
}
