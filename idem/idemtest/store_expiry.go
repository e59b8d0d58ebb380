package idemtest

import (
	"bytes"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// year is longer than every default time to live.
const year = 365 * 24 * time.Hour

// storeExpiryTests are about time by the clock of the store.
var storeExpiryTests = []storeTest{
	{name: "a result goes, then its key", run: func(b *storeBench) { b.expires(storeResponse()) }},
	{name: "a large result goes, then its key", run: func(b *storeBench) {
		b.expires(&driver.Response{Status: 200, Body: bytes.Repeat([]byte("x"), 4096)})
	}},
	{name: "a released key goes", run: func(b *storeBench) {
		a, _ := b.startFor(b.ttl(), b.ttl())
		s := settlement(a, driver.StateReleased)
		s.KeyTTL = b.ttl()
		b.settle(s, true)
		b.becomes(driver.StateNone)
		if next, _ := b.start(driver.ClientKey); next.Number != 1 {
			b.Errorf("Begin(%v) after expiry = attempt %d, want 1", b.id, next.Number)
		}
	}},
	{name: "a released key does not outlive its own time", moves: true, run: func(b *storeBench) {
		a, _ := b.startFor(2*time.Hour, time.Hour)
		s := settlement(a, driver.StateReleased)
		s.ResultTTL, s.KeyTTL = 2*time.Hour, time.Hour
		b.settle(s, true)
		b.becomes(driver.StateNone)
	}},
	{name: "a fence left by Abort goes", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		req.KeyTTL = b.ttl()
		b.abort(req)
		b.becomes(driver.StateNone)
	}},
	{name: "a token goes", run: func(b *storeBench) {
		b.issue(b.ttl())
		b.becomes(driver.StateNone)
		b.kept(b.request(driver.IssuedToken), driver.StateNone)
	}},
	{name: "a released token goes when it would have", moves: true, run: func(b *storeBench) {
		b.issue(time.Hour)
		a, _ := b.start(driver.IssuedToken)
		b.h.Advance(40 * time.Minute)
		b.settle(settlement(a, driver.StateReleased), true)
		b.in(driver.StateIssued, 1)
		b.h.Advance(20 * time.Minute)
		b.in(driver.StateNone, 0)
	}},
	{name: "a token that is used does not go", moves: true, run: func(b *storeBench) {
		b.issue(time.Hour)
		a, req := b.start(driver.IssuedToken)
		b.h.Advance(2 * time.Hour)
		b.in(driver.StatePending, 1)
		s := settlement(a, driver.StateReleased)
		b.settle(s, true)
		b.in(driver.StateNone, 0)
		b.kept(req, driver.StateNone)
		s.Repair, s.LeaseTrusted = &driver.Repair{Kind: driver.IssuedToken}, true
		b.settle(s, true)
		b.in(driver.StateNone, 0)
	}},
	{name: "an aborted token goes when it would have", moves: true, run: func(b *storeBench) {
		b.issue(time.Hour)
		_, req := b.start(driver.IssuedToken)
		b.h.Advance(2 * time.Hour)
		b.abort(req)
		b.in(driver.StateNone, 0)
	}},
	{name: "an Abort keeps its fence long enough", moves: true, run: func(b *storeBench) {
		a, _ := b.startFor(time.Hour, time.Hour)
		s := settlement(a, driver.StateReleased)
		s.KeyTTL = time.Hour
		b.settle(s, true)
		_, req := b.start(driver.ClientKey)
		b.h.Advance(3 * time.Hour)
		b.abort(req)
		b.h.Advance(time.Hour)
		b.stale(req)
		b.h.Advance(time.Hour)
		b.in(driver.StateNone, 0)
	}},
	{name: "an Abort lets no key go earlier", moves: true, run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		s := settlement(a, driver.StateReleased)
		s.KeyTTL = 5 * time.Hour
		b.settle(s, true)
		_, req := b.start(driver.ClientKey) // its Begin asks for less
		b.abort(req)
		b.h.Advance(4 * time.Hour)
		b.stale(req)
		b.h.Advance(time.Hour)
		b.in(driver.StateNone, 0)
	}},
	{name: "pending and unknown never go", moves: true, run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		b.h.Advance(10 * year)
		b.in(driver.StatePending, 1)
		s := settlement(a, driver.StateUnknown)
		s.Response = &driver.Response{Status: 500, Body: bytes.Repeat([]byte("x"), 4096)}
		b.settle(s, true)
		b.h.Advance(10 * year)
		if rec := b.in(driver.StateUnknown, 1); !sameResponse(rec.Response, s.Response) {
			b.Errorf("Get(%v) after years = %s, want %s", b.id, describeResponse(rec.Response), describeResponse(s.Response))
		}
		b.isOpen(true)
		b.settle(decision(a, driver.StateCompleted), true)
	}},
	{name: "a used token never goes by its own expiry", moves: true, run: func(b *storeBench) {
		b.issue(time.Hour)
		a, _ := b.start(driver.IssuedToken)
		s := settlement(a, driver.StateCompleted)
		s.ResultTTL, s.KeyTTL = 24*time.Hour, 48*time.Hour
		b.settle(s, true)
		b.h.Advance(2 * time.Hour)
		b.in(driver.StateCompleted, 1)
		b.issue(time.Hour)
		b.in(driver.StateCompleted, 1)
	}},
	{name: "a result that is not kept is expired at once", run: func(b *storeBench) {
		a, _ := b.startFor(0, 0)
		s := settlement(a, driver.StateCompleted)
		s.ResultTTL = 0
		b.settle(s, true)
		if rec := b.in(driver.StateExpired, 1); rec.Response != nil {
			b.Errorf("Get(%v) = a response, want none", b.id)
		}
	}},
	{name: "a settlement sent again after the result went stands", moves: true, run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		s := settlement(a, driver.StateCompleted)
		b.settle(s, true)
		b.h.Advance(s.ResultTTL)
		b.settleAgain(s, true)
		b.in(driver.StateExpired, 1)
	}},
	{name: "the clock is the store's", moves: true, run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		first := b.get().Started
		b.settle(settlement(a, driver.StateReleased), true)
		b.h.Advance(time.Hour)
		b.start(driver.ClientKey)
		if got := b.get().Started.Sub(first); got < time.Hour || got > time.Hour+storeTimeout {
			b.Errorf("Begin(%v) an hour later = started %v later", b.id, got)
		}
	}},
	{name: "the caller's clock does not matter", run: func(b *storeBench) {
		s, _ := b.restoring(driver.ClientKey, driver.StateCompleted) // started years ago
		before := b.get()
		rec := b.settle(s, true)
		if got := rec.KeyExpires.Sub(rec.Settled); got != s.KeyTTL || before.State != driver.StateNone {
			b.Errorf("Settle(%v) = key for %v, want %v", b.id, got, s.KeyTTL)
		}
		b.in(driver.StateCompleted, s.Attempt.Number)
	}},
}

// expires follows a completed record to its end.
func (b *storeBench) expires(r *driver.Response) {
	b.Helper()
	a, _ := b.startFor(0, 0)
	s := settlement(a, driver.StateCompleted)
	s.Response, s.ResultTTL, s.KeyTTL = r, b.ttl(), 2*b.ttl()
	if b.h.Advance == nil {
		s.KeyTTL = 3 * time.Second // a slow machine sees the state between
	}
	completed := b.settle(s, true)
	b.becomes(driver.StateExpired)
	want := completed
	want.State, want.Response = driver.StateExpired, nil
	if diff := differ(b.get(), want); diff != "" {
		b.Errorf("Get(%v) after the result expired: %s", b.id, diff)
	}
	b.kept(b.request(driver.ClientKey), driver.StateExpired)
	b.becomes(driver.StateNone)
	if next, _ := b.start(driver.ClientKey); next.Number != 1 {
		b.Errorf("Begin(%v) after the key expired = attempt %d, want 1", b.id, next.Number)
	}
}

// ttl is a time to live that ends within the test.
func (b *storeBench) ttl() time.Duration {
	if b.h.Advance != nil {
		return time.Hour
	}
	return 500 * time.Millisecond // a slow machine sees the state before
}

// becomes lets ttl pass and requires a state.
func (b *storeBench) becomes(want driver.State) {
	b.Helper()
	before := b.get().State
	if b.h.Advance != nil {
		b.h.Advance(b.ttl() - time.Millisecond)
		if got := b.get().State; got != before {
			b.Errorf("Get(%v) shortly before the end = %v, want %v", b.id, got, before)
		}
		b.h.Advance(time.Millisecond)
		if got := b.get().State; got != want {
			b.Fatalf("Get(%v) at the end = %v, want %v", b.id, got, want)
		}
		return
	}
	for deadline := time.Now().Add(storeTimeout); ; {
		got := b.get().State
		if got == want {
			return
		}
		if got != before || time.Now().After(deadline) {
			b.Fatalf("Get(%v) = %v after %v, want %v", b.id, got, before, want)
		}
		time.Sleep(2 * time.Millisecond) // between two looks
	}
}
