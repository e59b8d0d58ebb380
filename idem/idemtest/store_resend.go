package idemtest

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// storeResendTests send calls twice, late, and with others in between.
var storeResendTests = []storeTest{
	{name: "Issue", run: func(b *storeBench) {
		first := b.issue(time.Hour)
		if diff := differ(b.issue(2*time.Hour), first); diff != "" {
			b.Errorf("Issue(%v) again: %s", b.id, diff)
		}
	}},
	{name: "Issue after the token was used", run: func(b *storeBench) {
		b.issue(time.Hour)
		a, _ := b.start(driver.IssuedToken)
		b.unchanged(func() { b.issue(time.Hour) })
		for _, state := range []driver.State{driver.StateUnknown, driver.StateCompleted} {
			b.settle(settlement(a, state), true)
			b.unchanged(func() {
				if rec := b.issue(time.Hour); rec.State != state {
					b.Errorf("Issue(%v) = %v, want %v", b.id, rec.State, state)
				}
			})
		}
	}},
	{name: "Begin", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			b.id = randomKeyID()
			if kind == driver.IssuedToken {
				b.issue(time.Hour)
			}
			a, req := b.start(kind)
			b.unchanged(func() {
				if again := b.begun(req); again != a {
					b.Errorf("Begin(%v) again = %+v, want %+v", b.id, again, a)
				}
			})
		}
	}},
	{name: "Begin after its completion", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateCompleted), true)
		b.stale(req)
	}},
	{name: "Begin after its release", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateReleased), true)
		b.stale(req)
	}},
	{name: "Begin after its token's release", run: func(b *storeBench) {
		b.issue(time.Hour)
		a, req := b.start(driver.IssuedToken)
		b.settle(settlement(a, driver.StateReleased), true)
		b.stale(req)
	}},
	{name: "Begin after the next attempt began", run: func(b *storeBench) {
		a, req := b.start(driver.ClientKey)
		b.settle(settlement(a, driver.StateReleased), true)
		next, _ := b.start(driver.ClientKey)
		b.stale(req)
		b.settle(settlement(next, driver.StateReleased), true)
		b.stale(req)
	}},
	{name: "Begin after its Abort, and Abort again", run: func(b *storeBench) {
		_, req := b.start(driver.ClientKey)
		b.abort(req)
		b.stale(req)
		b.abortAgain(req)
		b.stale(req)
	}},
	{name: "Begin before, between and after two Aborts", run: func(b *storeBench) {
		req := b.request(driver.ClientKey)
		b.abort(req)
		b.stale(req)
		b.abortAgain(req)
		b.stale(req)
	}},
	{name: "Abort after a later attempt", run: func(b *storeBench) {
		_, req := b.start(driver.ClientKey)
		b.abort(req)
		later, _ := b.start(driver.ClientKey)
		b.abortAgain(req)
		b.settle(settlement(later, driver.StateUnknown), true)
		b.abortAgain(req)
		b.settle(settlement(later, driver.StateCompleted), true)
		b.abortAgain(req)
	}},
	{name: "Abort after a later release", run: func(b *storeBench) {
		_, req := b.start(driver.ClientKey)
		b.abort(req)
		later, _ := b.start(driver.ClientKey)
		b.settle(settlement(later, driver.StateReleased), true)
		b.abortAgain(req)
	}},
	{name: "Settle to every state", run: func(b *storeBench) {
		for _, kind := range []driver.KeyKind{driver.ClientKey, driver.IssuedToken} {
			for _, state := range []driver.State{driver.StateCompleted, driver.StateReleased, driver.StateUnknown} {
				b.id = randomKeyID()
				if kind == driver.IssuedToken {
					b.issue(time.Hour)
				}
				a, _ := b.start(kind)
				s := settlement(a, state)
				b.settle(s, true)
				b.settleAgain(s, true)
				b.settleAgain(s, true)
			}
		}
	}},
	{name: "Settle after a decision", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		mine, other := decision(a, driver.StateUnknown), decision(a, driver.StateCompleted)
		b.settle(mine, true)
		b.settle(other, true)
		b.settleAgain(mine, false)
		b.settleAgain(other, true)
	}},
	{name: "Settle by two to the same state", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		mine, other := decision(a, driver.StateCompleted), decision(a, driver.StateCompleted)
		b.settle(mine, true)
		b.settleAgain(other, false)
		b.settleAgain(mine, true)
	}},
	{name: "Settle after the next attempt began", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		s := settlement(a, driver.StateReleased)
		b.settle(s, true)
		next, _ := b.start(driver.ClientKey)
		b.settleAgain(s, false)
		b.settle(settlement(next, driver.StateCompleted), true)
		b.settleAgain(s, false)
	}},
	{name: "Settle to unknown after completion", run: func(b *storeBench) {
		a, _ := b.start(driver.ClientKey)
		unknown, completed := settlement(a, driver.StateUnknown), settlement(a, driver.StateCompleted)
		unknown.ID = driver.NewNonce()
		b.settle(unknown, true)
		b.settle(completed, true)
		b.settleAgain(unknown, false)
		b.settleAgain(completed, true)
	}},
}
