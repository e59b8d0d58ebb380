package memorystore

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Settle closes an attempt or marks it unknown. It repairs a record that is
// missing or older than the attempt. [idem.Store] has the table. The error is
// ctx.Err(), or wraps idem.ErrResponseInvalid.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (res idem.SettleResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	now := s.lock()
	defer s.mu.Unlock()
	e := s.entry(id, now)
	own := e != nil && e.record.Attempt == st.Attempt
	switch {
	case own && e.settlement == st.ID && stands(&e.record, st.State):
		res.Settled, res.Repaired = true, e.repaired
	case own && e.record.State.Open():
		return s.settle(id, e, &st, now, false)
	case own || !repairs(e, &st):
	case e == nil && st.State == idem.StateReleased && st.Repair.Kind == idem.IssuedToken:
		// The expiry of the token went with its record. The token stays unknown, so no
		// attempt runs under it again, which is what the settlement wants.
		res.Settled = true
	default:
		return s.settle(id, restored(e, &st, now), &st, now, true)
	}
	res.Record = e.copy()
	return res, nil
}

// settle applies st to e, whose attempt is open, and stores it.
func (s *Store) settle(id idem.KeyID, e *entry, st *idem.Settlement, now time.Time, repair bool) (res idem.SettleResult, err error) {
	var response []byte
	if st.Response != nil && st.State != idem.StateReleased {
		if response, err = st.Response.AppendBinary(nil); err != nil {
			return res, err
		}
	}
	r := &e.record
	e.before, e.response, e.settlement, e.repaired = nil, response, st.ID, repair
	r.State, r.Settled, r.Decision = st.State, now, st.Decision
	switch {
	case st.State == idem.StateCompleted:
		r.ResultExpires = now.Add(st.ResultTTL)
		r.KeyExpires = now.Add(max(keyTTL(st.KeyTTL), st.ResultTTL))
	case st.State == idem.StateReleased && r.Kind == idem.IssuedToken:
		r.State = idem.StateIssued
		if r.TokenExpires.IsZero() {
			r.TokenExpires = now // a repair made this record, and its expiry had been lost
		}
	case st.State == idem.StateReleased:
		r.KeyExpires = now.Add(keyTTL(st.KeyTTL))
	}
	s.put(id, e)
	res.Settled, res.Repaired = true, repair
	if e = s.entry(id, now); e != nil { // nil: its time is over already
		res.Record = e.record
		if e.response != nil {
			res.Record.Response = st.Response
		}
	}
	return res, nil
}

// repairs reports whether a settlement may replace e, which is missing or belongs
// to another attempt.
func repairs(e *entry, st *idem.Settlement) bool {
	re := st.Repair
	if re == nil || st.State == idem.StateReleased && !st.LeaseTrusted {
		return false
	}
	if e == nil {
		return true
	}
	r := &e.record
	stored, own := r.Attempt, st.Attempt
	switch {
	case r.Kind != re.Kind || !idle(r) && !r.State.Open():
		return false
	case stored.Fence.Domain == "":
		return r.State == idem.StateIssued
	case stored.Fence.Domain != own.Fence.Domain:
		return re.Replaced == idem.Replaced{State: r.State, Attempt: stored}
	}
	return stored.Fence.Before(own.Fence) && (idle(r) || stored.Number < own.Number)
}

// restored returns the open entry of the attempt that st settles. It will replace e,
// which may be nil.
func restored(e *entry, st *idem.Settlement, now time.Time) *entry {
	re := st.Repair
	r := idem.Record{
		State: idem.StatePending, Kind: re.Kind, Route: re.Route, Fingerprint: re.Fingerprint,
		Attempt: st.Attempt, Created: now, Started: re.Started,
	}
	if e != nil {
		r.Created, r.TokenExpires = e.record.Created, e.record.TokenExpires
	}
	return &entry{record: r}
}

// stands reports whether r is the result of a settlement to state.
func stands(r *idem.Record, state idem.State) bool {
	switch state {
	case idem.StateCompleted:
		return r.State == idem.StateCompleted || r.State == idem.StateExpired
	case idem.StateReleased:
		return idle(r)
	}
	return r.State == state
}
