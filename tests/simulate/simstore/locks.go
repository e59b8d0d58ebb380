package simstore

import (
	"context"
	"errors"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// lock is a lock as the server keeps it.
type lock struct {
	owner string
	fence driver.Fence
	ttl   time.Duration
	end   time.Time // by the server's clock
}

// domain is that of all fences.
const domain = "sim"

// held returns the lock of a key, if somebody has it.
func (st *state) held(id driver.KeyID) (lock, bool) {
	k, ok := st.locks[id]
	return k, ok && k.end.After(st.now)
}

// has reports whether an owner has the lock of a key.
func (st *state) has(id driver.KeyID, owner string) bool {
	k, held := st.held(id)
	return held && k.owner == owner
}

// acquire does what acquire.lua of internal/redislocks does. changed says that it wrote.
func (st *state) acquire(id driver.KeyID, l driver.OfferedLock) (f driver.Fence, taken, ours, changed bool) {
	k, held := st.held(id)
	if !held {
		st.last = max(st.last+1, uint64(st.now.UnixMicro()))
		k = lock{l.Owner, driver.Fence{Domain: domain, Token: st.last}, l.TTL, st.now.Add(l.TTL)}
		st.locks[id] = k
		return k.fence, true, true, true
	}
	ours = k.owner == l.Owner
	if ours || k.end.After(st.now.Add(k.ttl)) { // or the clock was set back
		changed, k.end = true, st.now.Add(k.ttl)
		st.locks[id] = k
	}
	return k.fence, false, ours, changed
}

// shorten reports whether somebody has the lock of a key. If the clock was set back, it gives the lock its time to live anew.
func (st *state) shorten(id driver.KeyID) (held, changed bool) {
	k, held := st.held(id)
	if changed = held && k.end.After(st.now.Add(k.ttl)); changed {
		k.end = st.now.Add(k.ttl)
		st.locks[id] = k
	}
	return held, changed
}

// extend renews the lock of an owner.
func (st *state) extend(id driver.KeyID, owner string) bool {
	k, held := st.held(id)
	if !held || k.owner != owner {
		return false
	}
	k.end = st.now.Add(k.ttl)
	st.locks[id] = k
	return true
}

// remove gives back the lock of an owner.
func (st *state) remove(id driver.KeyID, owner string) bool {
	if !st.has(id, owner) {
		return false
	}
	delete(st.locks, id)
	return true
}

// answers reports whether the record answers a combined call, so that nothing is locked.
func (st *state) answers(id driver.KeyID, rec *driver.Record, req driver.BeginRequest, l driver.OfferedLock) bool {
	switch own := rec.Attempt.Nonce == req.Nonce; {
	case rec.State == driver.StateNone:
		return req.Kind == driver.IssuedToken
	case rec.State == driver.StatePending && own:
		return !st.has(id, l.Owner)
	default:
		return own || rec.State.Open() || rec.State == driver.StateCompleted || rec.State == driver.StateExpired
	}
}

// beginLocked does what begin_locked.lua of tokenstore/redis does for a record that does not answer the call.
func (st *state) beginLocked(id driver.KeyID, req driver.BeginRequest, l driver.OfferedLock) (res driver.LockedBegin, err error) {
	res.Record, err = st.Get(there, id)
	if err != nil {
		return res, err
	}
	fence, taken, _, _ := st.acquire(id, l)
	if again := res.Record.Attempt.Nonce == req.Nonce; !taken && !again {
		res.Locked = true
		return res, nil
	}
	req.Fence = fence
	res.BeginResult, err = st.Begin(there, id, req)
	if !res.Begun {
		st.remove(id, l.Owner)
	}
	if errors.Is(err, driver.ErrStaleFence) {
		err = nil
	}
	return res, err
}

// settleUnlock does what settle_locked.lua of tokenstore/redis does.
func (st *state) settleUnlock(id driver.KeyID, s driver.Settlement, l driver.OfferedLock) (driver.SettleResult, error) {
	s.LeaseTrusted = s.LeaseTrusted && st.has(id, l.Owner)
	res, err := st.Settle(there, id, s)
	if err == nil && res.Settled {
		st.remove(id, l.Owner)
	}
	return res, err
}

// beginLocked serves a combined call. last is its last moment by the server's clock, and deadline by the true time.
func (s *Server) beginLocked(id driver.KeyID, req driver.BeginRequest, l driver.OfferedLock, last, deadline time.Time) (res driver.LockedBegin, err error) {
	s.enter()
	defer s.mu.Unlock()
	if s.down {
		return res, errDown
	}
	before, _ := s.state.Get(context.Background(), id)
	res.Record = before
	late := s.state.now.After(last)
	switch {
	case (late || s.state.answers(id, &before, req, l)) && s.lost && before.State == driver.StateNone:
		return res, errLost
	case late:
		return res, nil
	case s.state.answers(id, &before, req, l):
		if before.State.Open() {
			var changed bool
			if res.Locked, changed = s.state.shorten(id); changed {
				s.note(id, true, func(st *state) error { st.shorten(id); return nil })
			}
		}
		return res, nil
	case s.full != nil && s.full(id):
		return res, errFull
	case s.lost:
		return res, errLost
	}
	if res, err = s.state.beginLocked(id, req, l); res.Begun {
		s.note(id, true, func(st *state) error { _, err := st.beginLocked(id, req, l); return err })
		s.report(id, before)
		if by := time.Since(deadline); by > 0 && s.Late != nil {
			s.Late(id, by)
		}
	}
	return res, err
}

// changeLock serves a call that changes a lock alone. change reports whether it did.
func (s *Server) changeLock(id driver.KeyID, change func(*state) bool) error {
	s.enter()
	defer s.mu.Unlock()
	if s.down {
		return errDown
	}
	if change(s.state) {
		s.note(id, true, func(st *state) error { change(st); return nil })
	}
	return nil
}

// Clock is the server's clock.
func (s *Server) Clock() time.Time {
	s.mu.Lock()
	defer s.mu.Unlock()
	return time.Now().Add(s.offset)
}

// Holder is the fence of the lock of a key, without the network. It is the zero fence if nobody has the lock.
func (s *Server) Holder(id driver.KeyID) driver.Fence {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.state.now = time.Now().Add(s.offset)
	if k, held := s.state.held(id); held {
		return k.fence
	}
	return driver.Fence{}
}

// lateBy allows for an estimate of the server's clock that is behind.
const lateBy = 100 * time.Millisecond

// lastMoment is the server's time when a call of ctx must have come, or the zero time if that is not known.
func (c *Client) lastMoment(ctx context.Context) (last, deadline time.Time) {
	deadline, ok := ctx.Deadline()
	c.mu.Lock()
	defer c.mu.Unlock()
	if !ok || c.seen.server.IsZero() {
		return time.Time{}, deadline
	}
	return c.seen.server.Add(c.now() - c.seen.lease + time.Until(deadline) + lateBy), deadline
}

// LockSpace implements driver.LockingStore.
func (c *Client) LockSpace() any { return c.s }

// BeginLocked implements driver.LockingStore. It only reads before the first answer of the server.
func (c *Client) BeginLocked(ctx context.Context, id driver.KeyID, req driver.BeginRequest, l driver.OfferedLock) (res driver.LockedBegin, err error) {
	last, deadline := c.lastMoment(ctx)
	if last.IsZero() {
		res.Record, err = c.Get(ctx, id)
		return res, err
	}
	return exchange(ctx, c, func() (driver.LockedBegin, error) { return c.s.beginLocked(id, req, l, last, deadline) })
}

// SettleUnlock implements driver.LockingStore.
func (c *Client) SettleUnlock(ctx context.Context, id driver.KeyID, st driver.Settlement, l driver.OfferedLock) (driver.SettleResult, error) {
	return change(ctx, c, id, false, func(m *state) (driver.SettleResult, error) { return m.settleUnlock(id, st, l) })
}
