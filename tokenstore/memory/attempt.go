package memorystore

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Begin starts an attempt; see [idem.Store] for the table. The error wraps
// idem.ErrStaleFence, or is ctx.Err().
func (s *Store) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (res idem.BeginResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	sh, now := s.lock(id)
	defer sh.mu.Unlock()
	e := sh.get(id)
	if e == nil {
		if req.Kind != idem.ClientKey || req.Rerun != nil {
			return res, nil
		}
		e = sh.fresh()
		e.record.Created = now
		e.begin(&req, now)
		sh.put(id, e, nil)
		res.Begun, res.Record = true, e.record
		return res, nil
	}
	r := &e.record
	switch {
	case r.State == idem.StatePending && same(r.Attempt, req):
		res.Begun = true
	case stale(r, req.Fence):
		err = fmt.Errorf("tokenstore/memory: begin with fence %v after %v: %w", req.Fence, r.Attempt.Fence, idem.ErrStaleFence)
	case req.Rerun == nil && idle(r) && r.Kind == req.Kind, reruns(r, &req) && r.Fingerprint == req.Fingerprint:
		e.keepBefore()
		e.begin(&req, now)
		res.Begun = true
	}
	res.Record = *r
	if res.Begun && e.before != nil {
		res.Replaced = idem.Replaced{State: e.before.record.State, Attempt: e.before.record.Attempt}
	}
	return res, err
}

// reruns reports whether r is the open record that a request starts over from.
func reruns(r *idem.Record, req *idem.BeginRequest) bool {
	return req.Rerun != nil && r.State.Open() && r.Kind == req.Kind && r.Attempt == *req.Rerun && r.Attempt.Fence != req.Fence
}

// keepBefore keeps what an entry was, for Abort.
func (e *entry) keepBefore() {
	before := *e
	before.before, before.record.Response = nil, nil
	e.before = &before
}

// begin makes e the pending entry of a new attempt.
func (e *entry) begin(req *idem.BeginRequest, now time.Time) {
	r := &e.record
	r.State, r.Kind, r.Route, r.Fingerprint, r.Response = idem.StatePending, req.Kind, req.Route, req.Fingerprint, nil
	r.Attempt.Number++
	r.Attempt.Fence, r.Attempt.Nonce = req.Fence, req.Nonce
	r.Started, r.Settled, r.ResultExpires, r.KeyExpires = now, time.Time{}, time.Time{}, time.Time{}
	r.Decision, e.settlement, e.repaired = idem.Decision{}, idem.Nonce{}, false
}

// Abort undoes a Begin, or refuses it should it still arrive. The error is
// ctx.Err() or nil.
func (s *Store) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sh, now := s.lock(id)
	defer sh.mu.Unlock()
	e := sh.get(id)
	switch {
	case e == nil:
		if req.Rerun != nil {
			return nil // its Begin wants an open record
		}
	case e.record.State == idem.StatePending && same(e.record.Attempt, req):
		if e.before != nil && e.before.record.State.Open() {
			e.leaveUnknown(now)
			return nil
		}
		e = e.before
	case reruns(&e.record, &req) && !stale(&e.record, req.Fence):
		e.record.Attempt = idem.Attempt{Number: e.record.Attempt.Number + 1, Fence: req.Fence, Nonce: req.Nonce}
		e.leaveUnknown(now)
		return nil
	case req.Rerun == nil && idle(&e.record) && e.record.Kind == req.Kind && !stale(&e.record, req.Fence):
	default: // nothing that this Begin could still change
		return nil
	}
	sh.leaveFence(id, e, req, now)
	return nil
}

// leaveUnknown makes a live entry an unknown one in place, bound to the request
// that it was bound to.
func (e *entry) leaveUnknown(now time.Time) {
	r := &e.record
	e.before, e.settlement, e.repaired = nil, idem.Nonce{}, false
	r.State, r.Settled, r.Response, r.Decision = idem.StateUnknown, now, nil, idem.Decision{}
}

// leaveFence stores e, or a released record where there is none, with the
// fence that refuses the request's Begin. There is no need for it where a token
// is unknown: no Begin makes one, and this must not either.
func (sh *shard) leaveFence(id idem.KeyID, e *entry, req idem.BeginRequest, now time.Time) {
	if e == nil {
		if req.Kind != idem.ClientKey {
			return
		}
		e = sh.fresh()
		e.record = idem.Record{State: idem.StateReleased, Created: now, Settled: now}
	}
	r := &e.record
	r.Attempt.Fence, r.Attempt.Nonce = req.Fence, req.Nonce
	if r.State == idem.StateReleased {
		if until := now.Add(keyTTL(req.KeyTTL)); until.After(r.KeyExpires) {
			r.KeyExpires = until
		}
	}
	sh.put(id, e, nil)
}

// same reports whether a is the attempt that req asks for.
func same(a idem.Attempt, req idem.BeginRequest) bool {
	return a.Fence == req.Fence && a.Nonce == req.Nonce
}

// idle reports whether the next attempt may begin.
func idle(r *idem.Record) bool {
	return r.State == idem.StateIssued || r.State == idem.StateReleased
}

// stale reports whether a Begin under fence f comes too late.
func stale(r *idem.Record, f idem.Fence) bool {
	stored := r.Attempt.Fence
	return f.Before(stored) || f == stored && !r.State.Open()
}

// keyTTL is d, or the default where there is none.
func keyTTL(d time.Duration) time.Duration {
	if d <= 0 {
		return idem.DefaultKeyTTL
	}
	return d
}
