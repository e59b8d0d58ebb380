package memorystore

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Settle closes an attempt or marks it unknown, and repairs a record that is
// missing or older than the attempt; see [idem.Store]. The error is ctx.Err(), or
// wraps idem.ErrResponseInvalid.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (res idem.SettleResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	sh, now := s.lock(id)
	defer sh.mu.Unlock()
	e := sh.get(id)
	switch {
	case e != nil && e.record.Attempt == st.Attempt:
		if e.settlement == st.ID && stands(&e.record, st.State) {
			res.Settled, res.Repaired = true, e.repaired
		} else if e.record.State.Open() {
			e.repaired = false
			err = sh.settle(id, e, &st, now, &res)
			return res, err
		}
	case !repairs(e, &st):
	case e == nil && st.State == idem.StateReleased && st.Restore.Kind == idem.IssuedToken:
		// The token stays missing, since its expiry went with it: it is unknown, and
		// nothing runs under it again, which is what the settlement wants.
		res.Settled = true
	default:
		err = sh.settle(id, sh.repaired(e, &st, now), &st, now, &res)
		return res, err
	}
	if e != nil {
		res.Record = e.record
	}
	return res, nil
}

// settle applies st to e, whose attempt is open, and stores it. res tells what is
// there then: no record where nothing of it is to be kept.
func (sh *shard) settle(id idem.KeyID, e *entry, st *idem.Settlement, now time.Time, res *idem.SettleResult) error {
	var response []byte
	if st.Response != nil && st.State == idem.StateCompleted {
		var err error
		if response, err = st.Response.AppendBinary(sh.buf[:0]); err != nil {
			return err
		}
		if cap(response) <= maxBuf {
			sh.buf = response
		}
	}
	r := &e.record
	e.before, e.settlement = nil, st.ID
	r.State, r.Settled, r.Decision, r.Response = st.State, now, st.Decision, nil
	switch st.State {
	case idem.StateCompleted:
		r.Response = st.Response
		r.ResultExpires = now.Add(st.ResultTTL)
		r.KeyExpires = now.Add(max(keyTTL(st.KeyTTL), st.ResultTTL))
	case idem.StateUnknown:
		r.Response = st.Response
	case idem.StateReleased:
		if r.Kind == idem.IssuedToken {
			r.State = idem.StateIssued
			if r.TokenExpires.IsZero() {
				r.TokenExpires = now // it was written anew before, and its expiry had gone with its record
			}
		} else {
			r.KeyExpires = now.Add(keyTTL(st.KeyTTL))
		}
	}
	res.Settled, res.Repaired = true, e.repaired
	res.Record = *r
	at := e.deadline()
	sh.put(id, e, response)
	if !at.IsZero() && !at.After(now) { // a token's time may be over, a result may not be kept at all
		sh.sweep(now)
		sh.tell(id, res)
	}
	return nil
}

// tell has res say what is known of id.
func (sh *shard) tell(id idem.KeyID, res *idem.SettleResult) {
	res.Record = idem.Record{}
	if e := sh.get(id); e != nil {
		res.Record = e.record
	}
}

// repairs reports whether a settlement may take the place of e, which is of
// another attempt or missing. [idem.Store] has the table.
func repairs(e *entry, st *idem.Settlement) bool {
	re := st.Restore
	if re == nil || st.State == idem.StateReleased && !st.Trusted {
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

// repaired is the open entry of the attempt that st settles, to take the place of
// e. It is not stored yet.
func (sh *shard) repaired(e *entry, st *idem.Settlement, now time.Time) *entry {
	made, re := sh.fresh(), st.Restore
	made.repaired = true
	r := &made.record
	r.State, r.Kind, r.Route, r.Fingerprint = idem.StatePending, re.Kind, re.Route, re.Fingerprint
	r.Attempt, r.Created, r.Started = st.Attempt, now, sh.normal(re.Started)
	if e != nil {
		r.Created, r.TokenExpires = e.record.Created, e.record.TokenExpires
	}
	return made
}

// stands reports whether r is what a settlement to state led to.
func stands(r *idem.Record, state idem.State) bool {
	switch state {
	case idem.StateCompleted:
		return r.State == idem.StateCompleted || r.State == idem.StateExpired
	case idem.StateReleased:
		return idle(r)
	}
	return r.State == state
}
