package idemtest

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeAbortTests are about a Begin without an answer.
var storeAbortTests = []storeTest{
	{name: "a first attempt leaves its fence", run: func(b *storeBench) {
		_, req := b.start(driver.ClientKey)
		b.abort(req)
		b.aborted(req, driver.StateReleased, 0)
		if rec := b.get(); !rec.Fingerprint.IsZero() || rec.Kind != driver.ClientKey || rec.KeyExpires.IsZero() {
			b.Errorf("Get(%v) after Abort = %+v, want a key that is bound to nothing and expires", b.id, rec)
		}
		b.stale(req)
		if next, _ := b.start(driver.ClientKey); next.Number != 1 {
			b.Errorf("Begin(%v) after Abort = attempt %d, want 1", b.id, next.Number)
		}
	}},
	{name: "a later attempt goes back to what was there", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(decision(first, driver.StateReleased), true)
		want := b.get()
		req := b.request(driver.ClientKey)
		req.Fingerprint.Sum[0]++
		b.begun(req)
		b.abort(req)
		b.aborted(req, driver.StateReleased, 1)
		got := b.get()
		want.Attempt, want.KeyExpires = got.Attempt, got.KeyExpires
		if diff := differ(got, want); diff != "" {
			b.Errorf("Get(%v) after Abort: %s", b.id, diff)
		}
		b.stale(req)
		if next, _ := b.start(driver.ClientKey); next.Number != 2 {
			b.Errorf("Begin(%v) after Abort = attempt %d, want 2", b.id, next.Number)
		}
	}},
	{name: "a token is issued again", run: func(b *storeBench) {
		want := b.issue(time.Hour)
		_, req := b.start(driver.IssuedToken)
		b.abort(req)
		b.aborted(req, driver.StateIssued, 0)
		got := b.get()
		want.Attempt = got.Attempt
		if diff := differ(got, want); diff != "" {
			b.Errorf("Get(%v) after Abort: %s", b.id, diff)
		}
		b.stale(req)
		if next, _ := b.start(driver.IssuedToken); next.Number != 1 {
			b.Errorf("Begin(%v) after Abort = attempt %d, want 1", b.id, next.Number)
		}
	}},
	{name: "a token's later attempt is given back", run: func(b *storeBench) {
		b.issue(time.Hour)
		first, _ := b.start(driver.IssuedToken)
		b.settle(settlement(first, driver.StateReleased), true)
		_, req := b.start(driver.IssuedToken)
		b.abort(req)
		b.aborted(req, driver.StateIssued, 1)
	}},
	{name: "a Begin that has not arrived is refused", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		b.abort(req)
		b.aborted(req, driver.StateReleased, 0)
		b.stale(req)
		if next, _ := b.start(driver.ClientKey); next.Number != 1 {
			b.Errorf("Begin(%v) after Abort = attempt %d, want 1", b.id, next.Number)
		}
	}},
	{name: "a Begin that has not arrived is refused after a release", run: func(b *storeBench) {
		first, _ := b.start(driver.ClientKey)
		b.settle(settlement(first, driver.StateReleased), true)
		req := b.request(driver.ClientKey)
		b.abort(req)
		b.aborted(req, driver.StateReleased, 1)
		b.stale(req)
	}},
	{name: "a Begin that has not arrived is refused to a token", run: func(b *storeBench) {
		issued := b.issue(time.Hour)
		req := b.request(driver.IssuedToken)
		b.abort(req)
		b.aborted(req, driver.StateIssued, 0)
		if rec := b.get(); !rec.TokenExpires.Equal(issued.TokenExpires) {
			b.Errorf("Get(%v) after Abort = expiry %v, want %v", b.id, rec.TokenExpires, issued.TokenExpires)
		}
		b.stale(req)
	}},
	{name: "a Begin that has not arrived is refused after another domain", run: func(b *storeBench) {
		first := b.begun(storeRequest(driver.ClientKey, "foreign", ^uint64(0)))
		b.settle(settlement(first, driver.StateReleased), true)
		req := b.request(driver.ClientKey)
		b.abort(req)
		b.aborted(req, driver.StateReleased, 1)
		b.stale(req)
	}},
	{name: "an unknown token does not become one", run: func(b *storeBench) {
		req := b.request(driver.IssuedToken)
		b.abortAgain(req)
		b.in(driver.StateNone, 0)
		b.kept(b.request(driver.IssuedToken), driver.StateNone)
	}},
	{name: "a later holder's release stays", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		later, _ := b.start(driver.ClientKey)
		b.settle(settlement(later, driver.StateReleased), true)
		b.abortAgain(req)
	}},
	{name: "what is not this attempt stays", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StatePending, driver.StateCompleted, driver.StateUnknown} {
			b.id = randomKeyID()
			early := b.request(driver.ClientKey)
			a, _ := b.start(driver.ClientKey)
			if state != driver.StatePending {
				b.settle(settlement(a, state), true)
			}
			b.abortAgain(early)
			b.abortAgain(b.request(driver.ClientKey))
			b.abortAgain(storeRequest(driver.ClientKey, "foreign", 1))
			b.abortAgain(storeRequest(driver.ClientKey, storeDomain, a.Fence.Token)) // another nonce
		}
	}},
	{name: "a settled attempt stays", run: func(b *storeBench) {
		for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
			b.id = randomKeyID()
			a, req := b.start(driver.ClientKey)
			b.settle(settlement(a, state), true)
			b.abortAgain(req)
		}
	}},
	{name: "the other kind stays", run: func(b *storeBench) {
		b.issue(time.Hour)
		b.abortAgain(b.request(driver.ClientKey))
	}},
	{name: "an aborted attempt cannot be settled", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		b.abort(req)
		b.settleAgain(settlement(a, driver.StateCompleted), false)
	}},
	{name: "an aborted attempt is not open", run: func(b *storeBench) {
		_, req := b.start(driver.ClientKey)
		b.isOpen(true)
		b.abort(req)
		b.isOpen(false)
	}},
}

// aborted requires the record after an Abort.
func (b *storeBench) aborted(req driver.BeginRequest, state driver.State, number uint32) {
	b.Helper()
	rec := b.in(state, number)
	if rec.Attempt.Fence != req.Fence {
		b.Errorf("Get(%v) after Abort = fence %v, want %v", b.id, rec.Attempt.Fence, req.Fence)
	}
	b.isOpen(false)
}
