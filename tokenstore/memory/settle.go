package memory

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Settle closes an attempt or marks it unknown; see [idem.Store]. The error is
// ctx.Err() or nil.
func (s *Store) Settle(ctx context.Context, id idem.KeyID, st idem.Settlement) (idem.SettleResult, error) {
	if err := ctx.Err(); err != nil {
		return idem.SettleResult{}, err
	}
	sh, now := s.lock(id)
	defer sh.mu.Unlock()
	e := sh.entries[id]
	if e == nil {
		return sh.restore(id, st, now), nil
	}
	r := &e.record
	if r.Attempt != st.Attempt {
		return idem.SettleResult{Record: *r}, nil
	}
	if e.settlement == st.ID && stands(r, st.State) {
		return idem.SettleResult{Settled: true, Record: *r}, nil
	}
	if !r.State.Open() {
		return idem.SettleResult{Record: *r}, nil
	}
	return sh.settle(id, e, st, now), nil
}

// settle applies st to e, whose attempt is open, and stores it.
func (sh *shard) settle(id idem.KeyID, e *entry, st idem.Settlement, now time.Time) idem.SettleResult {
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
	sh.put(id, e)
	sh.sweep(now) // a token's time may be over, a result may not be kept at all
	if e = sh.entries[id]; e == nil {
		return idem.SettleResult{Settled: true}
	}
	return idem.SettleResult{Settled: true, Record: e.record}
}

// restore writes a missing record anew where the settlement says so. A released
// token stays missing, since its expiry went with it: the token is unknown, and
// nothing runs under it again, which is what the settlement wants.
func (sh *shard) restore(id idem.KeyID, st idem.Settlement, now time.Time) idem.SettleResult {
	if st.Restore == nil {
		return idem.SettleResult{}
	}
	if st.State == idem.StateReleased && st.Restore.Kind == idem.IssuedToken {
		return idem.SettleResult{Settled: true}
	}
	e := &entry{record: idem.Record{
		Kind: st.Restore.Kind, Route: st.Restore.Route, Fingerprint: st.Restore.Fingerprint,
		Attempt: st.Attempt, Created: now, Started: st.Restore.Started,
	}}
	return sh.settle(id, e, st, now)
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
