package tests

import (
	"fmt"
	"testing"
)

// A holder that is killed at any point is succeeded once its session is over,
// and whoever retries gets the one payment. Messages of the dead that arrive
// late change nothing.
func TestKilledHolderIsSucceeded(t *testing.T) {
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			_, v, other := systemWithVictim(t)
			all := p.payUpTo(t, v, "killed")
			v.kill(t)

			first := map[transport]answer{}
			forEachPayment(t, all, func(t *testing.T, r runningPayment) {
				retry := wantPaidOnce(t, "retry", other.client(r.via), r.key)
				if p.paid && !retry.replayed {
					t.Errorf("retry = %v, want it marked as replayed", retry)
				}
				first[r.via] = retry
			})

			v.releaseHeld()
			for _, r := range all {
				c, want := other.client(r.via), first[r.via]
				again := c.payWithRetries(r.key, amount, r.key)
				wantReplay(t, "second retry over "+r.via.String(), again, want.payment)
				if again.wire != want.wire {
					t.Errorf("second retry = %v, want what the first got, %v", again, want)
				}
				wantOnePayment(t, c, r.key)
			}
		})
	}
}

// Where nobody can tell what a killed holder has done, every retry is told so,
// and nothing is paid again.
func TestKilledHolderWithoutResolverIsUnknown(t *testing.T) {
	for _, p := range points {
		if !p.begun || p.stored {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			_, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
			all := p.payUpTo(t, v, "unknown")
			v.kill(t)
			for _, r := range all {
				retry := other.client(r.via).payWithRetries(r.key, amount, r.key)
				wantRefusal(t, "retry over "+r.via.String(), retry, "outcome-unknown")
			}
			v.releaseHeld()
			forEachPayment(t, all, func(t *testing.T, r runningPayment) {
				c := other.client(r.via)
				if p.name == "the outcome is on its way" {
					// The dead holder's own report comes late, and an unknown outcome is
					// still open to it.
					eventually(t, "the report", func() error { return wantState(c, r.key, "completed") })
					wantReplay(t, "retry after the report", c.pay(r.key, amount, r.key), wantOnePayment(t, c, r.key))
					return
				}
				wantRefusal(t, "second retry", c.pay(r.key, amount, r.key), "outcome-unknown")
				if err := wantState(c, r.key, "unknown"); err != nil {
					t.Error(err)
				}
				if p.paid {
					wantOnePayment(t, c, r.key)
				} else {
					wantNoPayment(t, c, r.key)
				}
			})
		})
	}
}

// An instance that is started again takes up where its predecessor was killed.
func TestKilledAndRestartedInstanceResumes(t *testing.T) {
	s, v, _ := systemWithVictim(t)
	all := v.startPaymentsUpTo(t, "restarted", "at=after-ledger")
	v.kill(t)
	reborn := s.start("the reborn")
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := reborn.client(r.via)
		wantPaidOnce(t, "retry", c, r.key)
	})
}

// wantState is nil while the store has a key in a state.
func wantState(c client, key, want string) error {
	state, err := c.keyState(key)
	if err == nil && state != want {
		err = fmt.Errorf("state = %q, want %s", state, want)
	}
	return err
}
