package idemtest

import (
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
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
		a, _ := b.start(idem.IssuedToken)
		b.unchanged(func() { b.issue(time.Hour) })
		for _, state := range []idem.State{idem.StateUnknown, idem.StateCompleted} {
			b.settle(settlement(a, state), true)
			b.unchanged(func() {
				if rec := b.issue(time.Hour); rec.State != state {
					b.Errorf("Issue(%v) = %v, want %v", b.id, rec.State, state)
				}
			})
		}
	}},
	{name: "Begin", run: func(b *storeBench) {
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			b.id = randomKeyID()
			if kind == idem.IssuedToken {
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
		a, req := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateCompleted), true)
		b.stale(req)
	}},
	{name: "Begin after its release", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateReleased), true)
		b.stale(req)
	}},
	{name: "Begin after its token's release", run: func(b *storeBench) {
		b.issue(time.Hour)
		a, req := b.start(idem.IssuedToken)
		b.settle(settlement(a, idem.StateReleased), true)
		b.stale(req)
	}},
	{name: "Begin after the next attempt began", run: func(b *storeBench) {
		a, req := b.start(idem.ClientKey)
		b.settle(settlement(a, idem.StateReleased), true)
		next, _ := b.start(idem.ClientKey)
		b.stale(req)
		b.settle(settlement(next, idem.StateReleased), true)
		b.stale(req)
	}},
	{name: "Begin after its Abort, and Abort again", run: func(b *storeBench) {
		_, req := b.start(idem.ClientKey)
		b.abort(req)
		b.stale(req)
		b.abortAgain(req)
		b.stale(req)
	}},
	{name: "Begin before, between and after two Aborts", run: func(b *storeBench) {
		req := b.request(idem.ClientKey)
		b.abort(req)
		b.stale(req)
		b.abortAgain(req)
		b.stale(req)
	}},
	{name: "Abort after a later attempt", run: func(b *storeBench) {
		_, req := b.start(idem.ClientKey)
		b.abort(req)
		later, _ := b.start(idem.ClientKey)
		b.abortAgain(req)
		b.settle(settlement(later, idem.StateUnknown), true)
		b.abortAgain(req)
		b.settle(settlement(later, idem.StateCompleted), true)
		b.abortAgain(req)
	}},
	{name: "Abort after a later release", run: func(b *storeBench) {
		_, req := b.start(idem.ClientKey)
		b.abort(req)
		later, _ := b.start(idem.ClientKey)
		b.settle(settlement(later, idem.StateReleased), true)
		b.abortAgain(req)
	}},
	{name: "Settle to every state", run: func(b *storeBench) {
		for _, kind := range []idem.KeyKind{idem.ClientKey, idem.IssuedToken} {
			for _, state := range []idem.State{idem.StateCompleted, idem.StateReleased, idem.StateUnknown} {
				b.id = randomKeyID()
				if kind == idem.IssuedToken {
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
		a, _ := b.start(idem.ClientKey)
		mine, other := decision(a, idem.StateUnknown), decision(a, idem.StateCompleted)
		b.settle(mine, true)
		b.settle(other, true)
		b.settleAgain(mine, false)
		b.settleAgain(other, true)
	}},
	{name: "Settle by two to the same state", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		mine, other := decision(a, idem.StateCompleted), decision(a, idem.StateCompleted)
		b.settle(mine, true)
		b.settleAgain(other, false)
		b.settleAgain(mine, true)
	}},
	{name: "Settle after the next attempt began", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		s := settlement(a, idem.StateReleased)
		b.settle(s, true)
		next, _ := b.start(idem.ClientKey)
		b.settleAgain(s, false)
		b.settle(settlement(next, idem.StateCompleted), true)
		b.settleAgain(s, false)
	}},
	{name: "Settle to unknown after completion", run: func(b *storeBench) {
		a, _ := b.start(idem.ClientKey)
		unknown, completed := settlement(a, idem.StateUnknown), settlement(a, idem.StateCompleted)
		unknown.ID = idem.NewNonce()
		b.settle(unknown, true)
		b.settle(completed, true)
		b.settleAgain(unknown, false)
		b.settleAgain(completed, true)
	}},
}
