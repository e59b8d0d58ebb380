package idemtest

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeSettleTests are about settlements, by the holder or by others.
var storeSettleTests = []storeTest{
	{name: "completed keeps the response", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		pending := b.get()
		rec := b.settle(settlement(a, driver.StateCompleted), true)
		want := pending
		want.State, want.Response, want.Settled = driver.StateCompleted, storeResponse(), rec.Settled
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
		s := settlement(a, driver.StateCompleted)
		s.KeyTTL = s.ResultTTL / 2
		if rec := b.settle(s, true); rec.KeyExpires.Before(rec.ResultExpires) {
			b.Errorf("Settle(%v) = key until %v, result until %v", b.id, rec.KeyExpires, rec.ResultExpires)
		}
	}},
	{name: "released keeps no response", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		s := settlement(a, driver.StateReleased)
		s.Response = storeResponse()
		rec := b.settle(s, true)
		if rec.State != driver.StateReleased || rec.Response != nil || rec.Attempt != a || rec.Fingerprint != req.Fingerprint {
			b.Errorf("Settle(%v, released) = %+v, want attempt 1 without a response", b.id, rec)
		}
		if got := rec.KeyExpires.Sub(rec.Settled); got != 2*time.Hour || !rec.ResultExpires.IsZero() {
			b.Errorf("Settle(%v, released) = key for %v, want %v", b.id, got, 2*time.Hour)
		}
	}},
	{name: "a released token is issued again with its old expiry", run: func(b *storeBench) {
		issued := b.issue(time.Hour)
		a, _ := b.start(driver.IssuedToken)
		rec := b.settle(settlement(a, driver.StateReleased), true)
		if rec.State != driver.StateIssued || !rec.TokenExpires.Equal(issued.TokenExpires) || !rec.KeyExpires.IsZero() || rec.Attempt != a {
			b.Errorf("Settle(%v, released) = %+v, want an issued token that expires at %v", b.id, rec, issued.TokenExpires)
		}
	}},
	{name: "unknown keeps the response and does not expire", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		rec := b.settle(settlement(a, driver.StateUnknown), true)
		if rec.State != driver.StateUnknown || !sameResponse(rec.Response, storeResponse()) ||
			!rec.ResultExpires.IsZero() || !rec.KeyExpires.IsZero() || rec.Settled.IsZero() {
			b.Errorf("Settle(%v, unknown) = %+v, want the response and no expiry", b.id, rec)
		}
	}},
	{name: "unknown without a response", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		s := settlement(a, driver.StateUnknown)
		s.Response = nil
		if rec := b.settle(s, true); rec.Response != nil {
			b.Errorf("Settle(%v, unknown) = %+v, want no response", b.id, rec.Response)
		}
	}},
	{name: "unknown is still open: completed", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateUnknown), true)
		d := decision(a, driver.StateCompleted)
		d.Response = &driver.Response{Status: 200, Body: []byte("looked up")}
		rec := b.settle(d, true)
		if rec.State != driver.StateCompleted || rec.Decision != d.Decision || !sameResponse(rec.Response, d.Response) {
			b.Errorf("Settle(%v, completed) = %+v, want the decision", b.id, rec)
		}
	}},
	{name: "unknown is still open: released", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateUnknown), true)
		rec := b.settle(decision(a, driver.StateReleased), true)
		if rec.State != driver.StateReleased || rec.Response != nil || rec.Decision.By != "operator" {
			b.Errorf("Settle(%v, released) = %+v, want the decision without a response", b.id, rec)
		}
		next, _ := b.start(driver.ClientKey)
		if rec := b.in(driver.StatePending, 2); next.Number != 2 || rec.Decision != (driver.Decision{}) || !rec.Settled.IsZero() {
			b.Errorf("Begin(%v) after the decision = %+v, want nothing of it left", b.id, rec)
		}
	}},
	{name: "a decision is kept", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		d := decision(a, driver.StateUnknown)
		d.Decision = driver.Decision{By: "resolver", Reason: "bank does not know; \"ask\" again\n\x00"}
		b.settle(d, true)
		if rec := b.get(); rec.Decision != d.Decision {
			b.Errorf("Get(%v) = decision %q, want %q", b.id, rec.Decision, d.Decision)
		}
	}},
	{name: "the holder may report before a decision", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		b.settle(decision(a, driver.StateUnknown), true)
		rec := b.settle(settlement(a, driver.StateCompleted), true)
		if rec.State != driver.StateCompleted || rec.Decision != (driver.Decision{}) {
			b.Errorf("Settle(%v, completed) = %+v, want the holder's own", b.id, rec)
		}
	}},
	{name: "the holder comes too late after a decision", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased} {
			b.id = randomKeyID()
			a, _ := b.start(driver.ClientKey)
			b.settle(decision(a, state), true)
			b.settleAgain(settlement(a, driver.StateCompleted), false)
			b.settleAgain(settlement(a, driver.StateUnknown), false)
			b.settleAgain(settlement(a, driver.StateReleased), false)
		}
	}},
	{name: "the holder comes too late once the next attempt runs", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			b.id = randomKeyID()
			if kind == driver.IssuedToken {
				b.issue(time.Hour)
			}
			a, _ := b.start(kind)
			b.settle(decision(a, driver.StateReleased), true)
			b.start(kind)
			b.settleAgain(settlement(a, driver.StateCompleted), false)
		}
	}},
	{name: "nothing to settle", run: func(b *storeBench) {
		a := driver.Attempt{Number: 1, Fence: driver.Fence{Domain: storeDomain, Token: 7}, Nonce: driver.NewNonce()}
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
			b.settleAgain(settlement(a, state), false)
		}
		b.in(driver.StateNone, 0)
	}},
	{name: "an issued token is not settled", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.settleAgain(settlement(driver.Attempt{}, driver.StateCompleted), false)
	}},
}

// storeRestoreTests are about lost records.
var storeRestoreTests = []storeTest{
	{name: "a missing record is written anew", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for _, state := range []driver.State{driver.StateCompleted, driver.StateUnknown} {
				b.id = randomKeyID()
				s, req := b.restoring(kind, state)
				rec := b.settle(s, true)
				want := driver.Record{
					State: state, Kind: kind, Route: req.Route, Fingerprint: req.Fingerprint, Attempt: s.Attempt,
					Response: storeResponse(), Created: rec.Created, Started: s.Repair.Started, Settled: rec.Settled,
					ResultExpires: rec.ResultExpires, KeyExpires: rec.KeyExpires, ResultTTL: rec.ResultTTL, KeyTTL: rec.KeyTTL,
				}
				if diff := differ(rec, want); diff != "" || rec.Settled.IsZero() {
					b.Errorf("Settle(%v, %v) of a missing record: %s", b.id, state, diff)
				}
				if completed := state == driver.StateCompleted; completed == rec.KeyExpires.IsZero() {
					b.Errorf("Settle(%v, %v) of a missing record = expiry %v", b.id, state, rec.KeyExpires)
				}
				b.isOpen(state == driver.StateUnknown)
				b.settleAgain(s, true)
			}
		}
	}},
	{name: "a restored attempt is refused to begin again", run: func(b *storeBench) {
		s, req := b.restoring(driver.ClientKey, driver.StateReleased)
		b.settle(s, true)
		b.in(driver.StateReleased, s.Attempt.Number)
		b.stale(req)
		if next, _ := b.start(driver.ClientKey); next.Number != s.Attempt.Number+1 {
			b.Errorf("Begin(%v) = attempt %d, want %d", b.id, next.Number, s.Attempt.Number+1)
		}
	}},
	{name: "a restored unknown attempt can be decided", run: func(b *storeBench) {
		s, _ := b.restoring(driver.ClientKey, driver.StateUnknown)
		b.settle(s, true)
		b.settle(decision(s.Attempt, driver.StateCompleted), true)
		b.isOpen(false)
	}},
	{name: "a missing token is not issued again by its release", run: func(b *storeBench) {
		s, _ := b.restoring(driver.IssuedToken, driver.StateReleased)
		b.settle(s, true)
		b.in(driver.StateNone, 0)
		b.kept(b.request(driver.IssuedToken), driver.StateNone)
	}},
	{name: "a restored token is not issued again by a decision", run: func(b *storeBench) {
		s, _ := b.restoring(driver.IssuedToken, driver.StateUnknown)
		b.settle(s, true)
		b.settle(decision(s.Attempt, driver.StateReleased), true)
		b.isOpen(false)
		b.in(driver.StateNone, 0)
		b.kept(b.request(driver.IssuedToken), driver.StateNone)
	}},
	{name: "a later record is not replaced", run: func(b *storeBench) {
		s, _ := b.restoring(driver.ClientKey, driver.StateCompleted)
		other, _ := b.start(driver.ClientKey)
		b.settleAgain(s, false)
		b.settle(settlement(other, driver.StateCompleted), true)
		b.settleAgain(s, false)
	}},
	{name: "an attempt that is there is settled as usual", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		began := b.get()
		s := settlement(a, driver.StateCompleted)
		s.Repair = &driver.Repair{Kind: req.Kind, Route: "wrong", Started: began.Started.Add(-time.Hour)}
		if rec := b.settle(s, true); rec.Route != req.Route || !rec.Started.Equal(began.Started) {
			b.Errorf("Settle(%v) = %+v, want the record's own route and start", b.id, rec)
		}
	}},
}

// restoring returns a settlement that writes a missing record anew.
func (b *storeBench) restoring(kind driver.KeyKind, state driver.State) (driver.Settlement, driver.BeginRequest) {
	req := b.request(kind)
	s := settlement(driver.Attempt{Number: 3, Fence: req.Fence, Nonce: req.Nonce}, state)
	s.LeaseTrusted = true
	s.Repair = &driver.Repair{
		Kind: kind, Route: req.Route, Fingerprint: req.Fingerprint,
		Started: time.Date(2024, 2, 29, 12, 0, 0, 7e6, time.UTC),
	}
	return s, req
}
