package memorystore

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Begin starts an attempt. [idem.Store] has the table. The error wraps
// idem.ErrStaleFence, or is ctx.Err().
func (s *Store) Begin(ctx context.Context, id idem.KeyID, req idem.BeginRequest) (res idem.BeginResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	e := s.entry(id, now)
	switch {
	case e == nil && (req.Kind != idem.ClientKey || req.RunAgainFrom != nil):
		return res, nil
	case e == nil:
		e = s.begin(id, nil, req, now)
		res.Begun = true
	case e.began(req):
		res.Begun = true
	case stale(&e.record, req.Fence):
		err = fmt.Errorf("tokenstore/memory: begin with fence %v after %v: %w", req.Fence, e.record.Attempt.Fence, idem.ErrStaleFence)
	case free(&e.record, req) || reruns(&e.record, req) && e.record.Fingerprint == req.Fingerprint:
		e = s.begin(id, e, req, now)
		res.Begun = true
	}
	res.Record = e.copy()
	if res.Begun && e.before != nil {
		res.Replaced = idem.Replaced{State: e.before.record.State, Attempt: e.before.record.Attempt}
	}
	return res, err
}

// begin stores the pending entry of a new attempt. It follows before, or nil.
func (s *Store) begin(id idem.KeyID, before *entry, req idem.BeginRequest, now time.Time) *entry {
	r := idem.Record{
		State: idem.StatePending, Kind: req.Kind, Route: req.Route, Fingerprint: req.Fingerprint,
		Attempt: idem.Attempt{Number: 1, Fence: req.Fence, Nonce: req.Nonce}, Created: now, Started: now,
	}
	if before != nil {
		was := &before.record
		r.Created, r.TokenExpires = was.Created, was.TokenExpires
		r.Attempt.Number = was.Attempt.Number + 1
		before.before, before.response = nil, nil
	}
	e := &entry{record: r, before: before}
	s.put(id, e)
	return e
}

// Abort undoes a Begin, or makes the store refuse it if it arrives later. The error
// is ctx.Err() or nil.
func (s *Store) Abort(ctx context.Context, id idem.KeyID, req idem.BeginRequest) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	now := s.lock()
	defer s.mu.Unlock()
	e := s.entry(id, now)
	switch {
	case e == nil:
		if req.RunAgainFrom == nil {
			s.leaveFence(id, nil, req, now)
		}
	case e.began(req) && e.before != nil && e.before.record.State.Open():
		e.leaveUnknown(now)
	case e.began(req):
		s.leaveFence(id, e.before, req, now)
	case stale(&e.record, req.Fence): // the store refuses this Begin anyway
	case reruns(&e.record, req):
		e.record.Attempt = idem.Attempt{Number: e.record.Attempt.Number + 1, Fence: req.Fence, Nonce: req.Nonce}
		e.leaveUnknown(now)
	case free(&e.record, req):
		s.leaveFence(id, e, req, now)
	}
	return nil
}

// leaveUnknown makes an entry unknown. It stays bound to its request.
func (e *entry) leaveUnknown(now time.Time) {
	e.before, e.response, e.settlement, e.repaired = nil, nil, idem.Nonce{}, false
	e.record.State, e.record.Settled, e.record.Decision = idem.StateUnknown, now, idem.Decision{}
}

// leaveFence stores e with the fence of the request. The store then refuses the request's
// Begin. Without an entry leaveFence stores a released record. An unknown token stays
// without a record, because the record would make it valid.
func (s *Store) leaveFence(id idem.KeyID, e *entry, req idem.BeginRequest, now time.Time) {
	if e == nil {
		if req.Kind != idem.ClientKey {
			return
		}
		e = &entry{record: idem.Record{State: idem.StateReleased, Created: now, Settled: now}}
	}
	r := &e.record
	r.Attempt.Fence, r.Attempt.Nonce = req.Fence, req.Nonce
	if until := now.Add(keyTTL(req.KeyTTL)); r.State == idem.StateReleased && until.After(r.KeyExpires) {
		r.KeyExpires = until
	}
	s.put(id, e)
}

// began reports whether the entry is the pending attempt that req asks for.
func (e *entry) began(req idem.BeginRequest) bool {
	a := e.record.Attempt
	return e.record.State == idem.StatePending && a.Fence == req.Fence && a.Nonce == req.Nonce
}

// free reports whether the next attempt may begin from r.
func free(r *idem.Record, req idem.BeginRequest) bool {
	return req.RunAgainFrom == nil && idle(r) && r.Kind == req.Kind
}

// idle reports whether r waits for its next attempt.
func idle(r *idem.Record) bool {
	return r.State == idem.StateIssued || r.State == idem.StateReleased
}

// reruns reports whether r is the open record that a request starts over from.
func reruns(r *idem.Record, req idem.BeginRequest) bool {
	return req.RunAgainFrom != nil && r.State.Open() && r.Kind == req.Kind && r.Attempt == *req.RunAgainFrom && r.Attempt.Fence != req.Fence
}

// stale reports whether a Begin under fence f comes too late.
func stale(r *idem.Record, f idem.Fence) bool {
	stored := r.Attempt.Fence
	return f.Before(stored) || f == stored && !r.State.Open()
}

// keyTTL is d, or the default.
func keyTTL(d time.Duration) time.Duration { return cmp.Or(max(d, 0), idem.DefaultKeyTTL) }
