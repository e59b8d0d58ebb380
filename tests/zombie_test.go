package tests

import (
	"slices"
	"testing"
)

// wantPaymentOrOpenRefusal is what a client of a paused holder may be told in the end: the one
// payment, or that its outcome has to be asked for again.
func wantPaymentOrOpenRefusal(t *testing.T, done <-chan answer, want payment) {
	t.Helper()
	a := <-done
	switch {
	case a.isPayment() && a.formErr == nil && a.payment == want:
	case a.isRefusal("ownership-lost"), a.isRefusal("unavailable"), a.isRefusal("ledger-unavailable"), a.isRefusal("outcome-unknown"), a.isRefusal("store-lost"):
	default:
		t.Errorf("answer of the paused holder = %v, want %v, or a refusal that leaves it open", a, want)
	}
}

// waitLocksFree waits until nobody holds the locks: their holder's session
// is over.
func (s *system) waitLocksFree(all []runningPayment) {
	s.t.Helper()
	conn := s.zooKeeper()
	for _, r := range all {
		s.waitLock(conn, r.key, false)
	}
}

// A holder that is paused beyond its session at any point is succeeded, and
// when it wakes up it can neither pay nor change the outcome.
func TestPausedHolderIsSucceededAndCannotPayLater(t *testing.T) {
	for _, p := range points {
		t.Run(p.name, func(t *testing.T) {
			s, v, other := systemWithVictim(t)
			all := p.payUpTo(t, v, "paused")
			v.pause(t)
			s.waitLocksFree(all)

			want := map[transport]payment{}
			for _, r := range all {
				want[r.via] = wantPaidOnce(t, "retry over "+r.via.String(), other.client(r.via), r.key).payment
			}

			v.resume(t)
			v.releaseHeld()
			forEachPayment(t, all, func(t *testing.T, r runningPayment) {
				wantPaymentOrOpenRefusal(t, r.done, want[r.via])
				if p.reportsWhenResumed { // and the store did not listen
					v.waitLog(t, "event=superseded", logOp(r.key))
				}
				for _, in := range []*instance{v.instance, other} {
					again := in.client(r.via).payWithRetries(r.key, amount, r.key)
					wantPayment(t, "retry at "+in.name, again, want[r.via])
				}
				wantOnePayment(t, other.client(r.via), r.key)
			})
		})
	}
}

// Without a resolver the next holder is told that the outcome is unknown, and
// the one that wakes up may still report it, but not pay.
func TestPausedHolderWithoutResolverIsUnknown(t *testing.T) {
	for _, p := range points {
		if !p.begun || p.stored {
			continue
		}
		t.Run(p.name, func(t *testing.T) {
			s, v, other := systemWithVictim(t, withFlags("--resolver", "none"))
			all := p.payUpTo(t, v, "paused-unknown")
			v.pause(t)
			s.waitLocksFree(all)
			for _, r := range all {
				retry := other.client(r.via).payWithRetries(r.key, amount, r.key)
				wantRefusal(t, "retry over "+r.via.String(), retry, "outcome-unknown")
			}

			v.resume(t)
			v.releaseHeld()
			forEachPayment(t, all, func(t *testing.T, r runningPayment) {
				c := other.client(r.via)
				if !p.paid {
					if a := <-r.done; a.isPayment() {
						t.Errorf("answer of the paused holder = %v, want no payment", a)
					}
					a := c.pay(r.key, amount, r.key)
					if p.abortsWhenResumed && a.isPayment() {
						// The one that woke up has given its attempt back: it has
						// never run, and the unknown outcome was still open to it.
						v.waitLog(t, "event=begin-aborted", logOp(r.key))
						wantPayment(t, "retry after the abort", a, wantOnePayment(t, c, r.key))
						return
					}
					if a.isPayment() {
						t.Errorf("retry = %v, want no payment", a)
					}
					wantNoPayment(t, c, r.key)
					return
				}
				want := wantOnePayment(t, c, r.key)
				wantPaymentOrOpenRefusal(t, r.done, want)
				if a := c.pay(r.key, amount, r.key); !a.isRefusal("outcome-unknown") {
					wantPayment(t, "retry after the report", a, want)
				}
				wantOnePayment(t, c, r.key)
			})
		})
	}
}

// The paused holder wakes up while the next one is at work, and has not paid
// yet: the one that woke up must not pay now.
func TestPausedHolderWakesBeforeTheNextHasPaid(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	// It waits where its own sweeper looks at the key at that very moment.
	v, next := s.startVictim(), s.start("the next", withLatency(victimLatency), withFlags("--wait", "30s"))
	all := v.startPaymentsUpTo(t, "both", "at=before-ledger")
	v.pause(t)
	s.waitLocksFree(all)
	second := next.startPaymentsUpTo(t, "both", "at=before-ledger")
	v.resume(t)

	for i, r := range all {
		t.Run(r.via.String(), func(t *testing.T) {
			b := <-second[i].done
			want := wantOnePayment(t, next.client(r.via), r.key)
			wantPayment(t, "answer of the next holder", b, want)
			wantPaymentOrOpenRefusal(t, r.done, want)
			v.wantNoLog(t, "at=after-ledger", logOp(r.key))
			wantPayment(t, "retry", v.client(r.via).payWithRetries(r.key, amount, r.key), want)
		})
	}
}

// All of several holders that were paused one after the other wake up at once.
func TestSeveralPausedHoldersWakeAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var victims []*victim
	var held [][]runningPayment
	for range 2 {
		v := s.startVictim()
		all := v.startPayments("chain")
		v.startPaymentsWithRetries(t, all) // the locks of the one before have to go
		v.pause(t)
		s.waitLocksFree(all)
		victims, held = append(victims, v), append(held, all)
	}
	last := s.start("the last")
	want := map[transport]payment{}
	for _, r := range held[0] {
		want[r.via] = wantPaidOnce(t, "retry over "+r.via.String(), last.client(r.via), r.key).payment
	}
	for _, v := range slices.Backward(victims) {
		v.resume(t)
	}
	for _, all := range held {
		for _, r := range all {
			wantPaymentOrOpenRefusal(t, r.done, want[r.via])
			wantOnePayment(t, last.client(r.via), r.key)
		}
	}
}

// startPaymentsWithRetries sends payments again until all of them run.
func (v *victim) startPaymentsWithRetries(t *testing.T, all []runningPayment) {
	t.Helper()
	eventually(t, "holder", func() (err error) {
		for i := range all {
			r := &all[i]
			select {
			case a := <-r.done:
				if !a.asksToRetry() {
					t.Fatalf("answer of a holder to be = %v", a)
				}
				r.done = v.client(r.via).startPay(r.key, amount, r.key)
			default:
			}
			if _, ok := v.stderr.find("at=before-ledger", logOp(r.key)); !ok {
				err = errNotYet
			}
		}
		return err
	})
}
