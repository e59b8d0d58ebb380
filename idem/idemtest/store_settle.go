package idemtest

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// storeSettleTests are about settlements, by the holder or by others.
var storeSettleTests = []storeTest{
	{name: "completed keeps the response", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		pending := b.get()
		rec := b.settle(settlement(a, idem.StateCompleted), true)
		want := pending
		want.State, want.Response, want.Settled = idem.StateCompleted, storeResponse(), rec.Settled
		want.ResultTTL, want.KeyTTL = 0, 0
		want.ResultExpires, want.KeyExpires = rec.Settled.Add(time.Hour), rec.Settled.Add(2*time.Hour)
		if diff := differ(rec, want); diff != "" {
			b.Errorf("Settle(%v, completed): %s", b.id, diff)
		}
		if rec.Settled.Before(rec.Started) || rec.Settled.IsZero() {
			b.Errorf("Settle(%v, completed) = settled %v, started %v", b.id, rec.Settled, rec.Started)
		}
		if rec.Fingerprint != req.Fingerprint {
			b.Errorf("Settle(%v, completed) = fingerprint %v, want %v", b.id, rec.Fingerprint, req.Fingerprint)
		}
	}},
	{name: "the key is remembered as long as the result at least", run: func(b *storeBench) {
		a, _ := b.startFor(0, 0)
		s := settlement(a, idem.StateCompleted)
		s.KeyTTL = s.ResultTTL / 2
		if rec := b.settle(s, true); rec.KeyExpires.Before(rec.ResultExpires) {
			b.Errorf("Settle(%v) = key until %v, result until %v", b.id, rec.KeyExpires, rec.ResultExpires)
		}
	}},
	{name: "released keeps no response", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		s := settlement(a, idem.StateReleased)
		s.Response = storeResponse()
		rec := b.settle(s, true)
		if rec.State != idem.StateReleased || rec.Response != nil || rec.Attempt != a || rec.Fingerprint != req.Fingerprint {
			b.Errorf("Settle(%v, released) = %+v, want attempt 1 without a response", b.id, rec)
		}
		if got := rec.KeyExpires.Sub(rec.Settled); got != 2*time.Hour || !rec.ResultExpires.IsZero() {
			b.Errorf("Settle(%v, released) = key for %v, want %v", b.id, got, 2*time.Hour)
		}
	}},
	{name: "a released token is issued again with its old expiry", run: func(b *storeBench) {
		issued := b.issue(time.Hour)
		a, _ := b.start(idem.IssuedToken)
		rec := b.settle(settlement(a, idem.StateReleased), true)
		if rec.State != idem.StateIssued || !rec.TokenExpires.Equal(issued.TokenExpires) || !rec.KeyExpires.IsZero() || rec.Attempt != a {
			b.Errorf("Settle(%v, released) = %+v, want an issued token that expires at %v", b.id, rec, issued.TokenExpires)
		}
	}},
	{name: "unknown keeps the response and does not expire", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		rec := b.settle(settlement(a, idem.StateUnknown), true)
		if rec.State != idem.StateUnknown || !sameResponse(rec.Response, storeResponse()) ||
			!rec.ResultExpires.IsZero() || !rec.KeyExpires.IsZero() || rec.Settled.IsZero() {
			b.Errorf("Settle(%v, unknown) = %+v, want the response and no expiry", b.id, rec)
		}
	}},
	{name: "unknown without a response", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		s := settlement(a, idem.StateUnknown)
		s.Response = nil
		if rec := b.settle(s, true); rec.Response != nil {
			b.Errorf("Settle(%v, unknown) = %+v, want no response", b.id, rec.Response)
		}
	}},
	{name: "unknown is still open: completed", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateUnknown), true)
		d := decision(a, idem.StateCompleted)
		d.Response = &idem.Response{Status: 200, Body: []byte("looked up")}
		rec := b.settle(d, true)
		if rec.State != idem.StateCompleted || rec.Decision != d.Decision || !sameResponse(rec.Response, d.Response) {
			b.Errorf("Settle(%v, completed) = %+v, want the decision", b.id, rec)
		}
	}},
	{name: "unknown is still open: released", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateUnknown), true)
		rec := b.settle(decision(a, idem.StateReleased), true)
		if rec.State != idem.StateReleased || rec.Response != nil || rec.Decision.By != "operator" {
			b.Errorf("Settle(%v, released) = %+v, want the decision without a response", b.id, rec)
		}
		next, _ := b.start(idem.ClientKey)
		if rec := b.in(idem.StatePending, 2); next.Number != 2 || rec.Decision != (idem.Decision{}) || !rec.Settled.IsZero() {
			b.Errorf("Begin(%v) after the decision = %+v, want nothing of it left", b.id, rec)
		}
	}},
	{name: "a decision is kept", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		d := decision(a, idem.StateUnknown)
		d.Decision = idem.Decision{By: "resolver", Reason: "bank does not know; \"ask\" again\n\x00"}
		b.settle(d, true)
		if rec := b.get(); rec.Decision != d.Decision {
			b.Errorf("Get(%v) = decision %q, want %q", b.id, rec.Decision, d.Decision)
		}
	}},
	{name: "the holder may report before a decision", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		b.settle(decision(a, idem.StateUnknown), true)
		rec := b.settle(settlement(a, idem.StateCompleted), true)
		if rec.State != idem.StateCompleted || rec.Decision != (idem.Decision{}) {
			b.Errorf("Settle(%v, completed) = %+v, want the holder's own", b.id, rec)
		}
	}},
	{name: "the holder comes too late after a decision", run: func(b *storeBench) {
		for _, state := range []idem.State{idem.StateCompleted, idem.StateReleased} {
			b.id = randomKeyID()
			a, _ := b.start(idem.ClientKey)
			b.settle(decision(a, state), true)
			b.settleAgain(settlement(a, idem.StateCompleted), false)
			b.settleAgain(settlement(a, idem.StateUnknown), false)
			b.settleAgain(settlement(a, idem.StateReleased), false)
		}
	}},
	{name: "the holder comes too late once the next attempt runs", run: func(b *storeBench) {
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			b.id = randomKeyID()
			if kind == idem.IssuedToken {
				b.issue(time.Hour)
			}
			a, _ := b.start(kind)
			b.settle(decision(a, idem.StateReleased), true)
			b.start(kind)
			b.settleAgain(settlement(a, idem.StateCompleted), false)
		}
	}},
	{name: "nothing to settle", run: func(b *storeBench) {
		a := idem.Attempt{Number: 1, Fence: idem.Fence{Domain: storeDomain, Token: 7}, Nonce: idem.NewNonce()}
		for _, state := range []idem.State{idem.StateCompleted, idem.StateReleased, idem.StateUnknown} {
			b.settleAgain(settlement(a, state), false)
		}
		b.in(idem.StateNone, 0)
	}},
	{name: "an issued token is not settled", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.settleAgain(settlement(idem.Attempt{}, idem.StateCompleted), false)
	}},
}

// storeRestoreTests are about lost records.
var storeRestoreTests = []storeTest{
	{name: "a missing record is written anew", run: func(b *storeBench) {
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			for _, state := range []idem.State{idem.StateCompleted, idem.StateUnknown} {
				b.id = randomKeyID()
				s, req := b.restoring(kind, state)
				rec := b.settle(s, true)
				want := idem.Record{
					State: state, Kind: kind, Route: req.Route, Fingerprint: req.Fingerprint, Attempt: s.Attempt,
					Response: storeResponse(), Created: rec.Created, Started: s.Repair.Started, Settled: rec.Settled,
					ResultExpires: rec.ResultExpires, KeyExpires: rec.KeyExpires, ResultTTL: rec.ResultTTL, KeyTTL: rec.KeyTTL,
				}
				if diff := differ(rec, want); diff != "" || rec.Settled.IsZero() {
					b.Errorf("Settle(%v, %v) of a missing record: %s", b.id, state, diff)
				}
				if completed := state == idem.StateCompleted; completed == rec.KeyExpires.IsZero() {
					b.Errorf("Settle(%v, %v) of a missing record = expiry %v", b.id, state, rec.KeyExpires)
				}
				b.isOpen(state == idem.StateUnknown)
				b.settleAgain(s, true)
			}
		}
	}},
	{name: "a restored attempt is refused to begin again", run: func(b *storeBench) {
		s, req := b.restoring(idem.ClientKey, idem.StateReleased)
		b.settle(s, true)
		b.in(idem.StateReleased, s.Attempt.Number)
		b.stale(req)
		if next, _ := b.start(idem.ClientKey); next.Number != s.Attempt.Number+1 {
			b.Errorf("Begin(%v) = attempt %d, want %d", b.id, next.Number, s.Attempt.Number+1)
		}
	}},
	{name: "a restored unknown attempt can be decided", run: func(b *storeBench) {
		s, _ := b.restoring(idem.ClientKey, idem.StateUnknown)
		b.settle(s, true)
		b.settle(decision(s.Attempt, idem.StateCompleted), true)
		b.isOpen(false)
	}},
	{name: "a missing token is not issued again by its release", run: func(b *storeBench) {
		s, _ := b.restoring(idem.IssuedToken, idem.StateReleased)
		b.settle(s, true)
		b.in(idem.StateNone, 0)
		b.kept(b.request(idem.IssuedToken), idem.StateNone)
	}},
	{name: "a restored token is not issued again by a decision", run: func(b *storeBench) {
		s, _ := b.restoring(idem.IssuedToken, idem.StateUnknown)
		b.settle(s, true)
		b.settle(decision(s.Attempt, idem.StateReleased), true)
		b.isOpen(false)
		b.in(idem.StateNone, 0)
		b.kept(b.request(idem.IssuedToken), idem.StateNone)
	}},
	{name: "a later record is not replaced", run: func(b *storeBench) {
		s, _ := b.restoring(idem.ClientKey, idem.StateCompleted)
		other, _ := b.start(idem.ClientKey)
		b.settleAgain(s, false)
		b.settle(settlement(other, idem.StateCompleted), true)
		b.settleAgain(s, false)
	}},
	{name: "an attempt that is there is settled as usual", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		began := b.get()
		s := settlement(a, idem.StateCompleted)
		s.Repair = &idem.Repair{Kind: req.Kind, Route: "wrong", Started: began.Started.Add(-time.Hour)}
		if rec := b.settle(s, true); rec.Route != req.Route || !rec.Started.Equal(began.Started) {
			b.Errorf("Settle(%v) = %+v, want the record's own route and start", b.id, rec)
		}
	}},
}

// restoring returns a settlement that writes a missing record anew.
func (b *storeBench) restoring(kind idem.KeyKind, state idem.State) (idem.Settlement, idem.BeginRequest) {
	req := b.request(kind)
	s := settlement(idem.Attempt{Number: 3, Fence: req.Fence, Nonce: req.Nonce}, state)
	s.LeaseTrusted = true
	s.Repair = &idem.Repair{
		Kind: kind, Route: req.Route, Fingerprint: req.Fingerprint,
		Started: time.Date(2024, 2, 29, 12, 0, 0, 7e6, time.UTC),
	}
	return s, req
}
