package memory

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Settle closes an attempt or marks it unknown; see [idem.Store]. The error is
// ctx.Err(), or wraps idem.ErrResponseInvalid.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (res idem.SettleResult, err error) {
	if err := ctx.Err(); err != nil {
		return res, err
	}
	sh, now := s.lock(id)
	defer sh.mu.Unlock()
	e := sh.get(id)
	if e == nil {
		if e = restored(sh, &st, now); e == nil {
			// A released token stays missing, since its expiry went with it: the
			// token is unknown, and nothing runs under it again, which is what
			// the settlement wants.
			res.Settled = st.Restore != nil
			return res, nil
		}
	}
	r := &e.record
	switch {
	case r.Attempt != st.Attempt:
	case e.settlement == st.ID && stands(r, st.State):
		res.Settled = true
	case r.State.Open():
		err = sh.settle(id, e, &st, now, &res)
		return res, err
	}
	res.Record = *r
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
		} else {
			r.KeyExpires = now.Add(keyTTL(st.KeyTTL))
		}
	}
	res.Settled = true
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

// restored is a missing record, made anew where the settlement says so.
func restored(sh *shard, st *idem.Settlement, now time.Time) *entry {
	if st.Restore == nil || st.State == idem.StateReleased && st.Restore.Kind == idem.IssuedToken {
		return nil
	}
	e := sh.fresh()
	r := &e.record
	r.State, r.Kind, r.Route, r.Fingerprint = idem.StatePending, st.Restore.Kind, st.Restore.Route, st.Restore.Fingerprint
	r.Attempt, r.Created, r.Started = st.Attempt, now, sh.normal(st.Restore.Started)
	return e
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
