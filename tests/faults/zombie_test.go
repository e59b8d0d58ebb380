package faults

import (
	"slices"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// wantPaymentOrOpenRefusal is what a client of a paused holder may be told in the end: the one
// payment, or that its outcome has to be asked for again.
func wantPaymentOrOpenRefusal(t *testing.T, done <-chan kit.Answer, want kit.Payment) {
	t.Helper()
	a := <-done
	switch {
	case a.IsPayment() && a.FormErr == nil && a.Payment == want:
	case a.IsRefusal("ownership-lost"), a.IsRefusal("unavailable"), a.IsRefusal("ledger-unavailable"), a.IsRefusal("outcome-unknown"), a.IsRefusal("store-lost"):
	default:
		t.Errorf("answer of the paused holder = %v, want %v, or a refusal that leaves it open", a, want)
	}
}

// waitLocksFree waits until nobody holds the locks: their holder's session
// is over.
func waitLocksFree(s *kit.System, all []kit.RunningPayment) {
	s.T.Helper()
	conn := s.ZooKeeper()
	for _, r := range all {
		s.WaitLock(conn, r.Key, false)
	}
}

// A holder that is paused beyond its session at any point is succeeded, and
// when it wakes up it can neither pay nor change the outcome.
func TestPausedHolderIsSucceededAndCannotPayLater(t *testing.T) {
	t.Parallel()
	for _, p := range kit.Points {
		t.Run(p.Name, func(t *testing.T) {
			s, v, other := kit.SystemWithVictim(t)
			all := p.PayUpTo(t, v, "paused")
			v.Pause(t)
			waitLocksFree(s, all)

			want := map[kit.Transport]kit.Payment{}
			for _, r := range all {
				want[r.Via] = kit.WantPaidOnce(t, "retry over "+r.Via.String(), other.Client(r.Via), r.Key).Payment
			}

			v.Resume(t)
			v.ReleaseHeld()
			kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
				wantPaymentOrOpenRefusal(t, r.Done, want[r.Via])
				if p.ReportsWhenResumed { // and the store did not listen
					v.WaitLog(t, "event=superseded", kit.LogOp(r.Key))
				}
				for _, in := range []*kit.Instance{v.Instance, other} {
					again := in.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key)
					kit.WantPayment(t, "retry at "+in.Name, again, want[r.Via])
				}
				kit.WantOnePayment(t, other.Client(r.Via), r.Key)
			})
		})
	}
}

// Without a resolver the next holder is told that the outcome is unknown, and
// the one that wakes up may still report it, but not pay.
func TestPausedHolderWithoutResolverIsUnknown(t *testing.T) {
	t.Parallel()
	for _, p := range kit.Points {
		if !p.Begun || p.Stored {
			continue
		}
		t.Run(p.Name, func(t *testing.T) {
			s, v, other := kit.SystemWithVictim(t, kit.WithFlags("--resolver", "none"))
			all := p.PayUpTo(t, v, "paused-unknown")
			v.Pause(t)
			waitLocksFree(s, all)
			for _, r := range all {
				retry := other.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key)
				kit.WantRefusal(t, "retry over "+r.Via.String(), retry, "outcome-unknown")
			}

			v.Resume(t)
			v.ReleaseHeld()
			kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
				c := other.Client(r.Via)
				if !p.Paid {
					if a := <-r.Done; a.IsPayment() {
						t.Errorf("answer of the paused holder = %v, want no payment", a)
					}
					a := c.Pay(r.Key, kit.Amount, r.Key)
					if p.AbortsWhenResumed && a.IsPayment() {
						// The one that woke up has given its attempt back: it has
						// never run, and the unknown outcome was still open to it.
						v.WaitLog(t, "event=begin-aborted", kit.LogOp(r.Key))
						kit.WantPayment(t, "retry after the abort", a, kit.WantOnePayment(t, c, r.Key))
						return
					}
					if a.IsPayment() {
						t.Errorf("retry = %v, want no payment", a)
					}
					kit.WantNoPayment(t, c, r.Key)
					return
				}
				want := kit.WantOnePayment(t, c, r.Key)
				wantPaymentOrOpenRefusal(t, r.Done, want)
				if a := c.Pay(r.Key, kit.Amount, r.Key); !a.IsRefusal("outcome-unknown") {
					kit.WantPayment(t, "retry after the report", a, want)
				}
				kit.WantOnePayment(t, c, r.Key)
			})
		})
	}
}

// The paused holder wakes up while the next one is at work, and has not paid
// yet: the one that woke up must not pay now.
func TestPausedHolderWakesBeforeTheNextHasPaid(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	// It waits where its own sweeper looks at the key at that very moment.
	v, next := s.StartVictim(), s.Start("the next", kit.WithLatency(kit.VictimLatency), kit.WithFlags("--wait", "30s"))
	all := v.StartPaymentsUpTo(t, "both", "at=before-ledger")
	v.Pause(t)
	waitLocksFree(s, all)
	second := next.StartPaymentsUpTo(t, "both", "at=before-ledger")
	v.Resume(t)

	for i, r := range all {
		t.Run(r.Via.String(), func(t *testing.T) {
			b := <-second[i].Done
			want := kit.WantOnePayment(t, next.Client(r.Via), r.Key)
			kit.WantPayment(t, "answer of the next holder", b, want)
			wantPaymentOrOpenRefusal(t, r.Done, want)
			v.WantNoLog(t, "at=after-ledger", kit.LogOp(r.Key))
			kit.WantPayment(t, "retry", v.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key), want)
		})
	}
}

// All of several holders that were paused one after the other wake up at once.
func TestSeveralPausedHoldersWakeAtOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	var victims []*kit.Victim
	var held [][]kit.RunningPayment
	for range 2 {
		v := s.StartVictim()
		all := v.StartPayments("chain")
		startPaymentsWithRetries(t, v, all) // the locks of the one before have to go
		v.Pause(t)
		waitLocksFree(s, all)
		victims, held = append(victims, v), append(held, all)
	}
	last := s.Start("the last")
	want := map[kit.Transport]kit.Payment{}
	for _, r := range held[0] {
		want[r.Via] = kit.WantPaidOnce(t, "retry over "+r.Via.String(), last.Client(r.Via), r.Key).Payment
	}
	for _, v := range slices.Backward(victims) {
		v.Resume(t)
	}
	for _, all := range held {
		for _, r := range all {
			wantPaymentOrOpenRefusal(t, r.Done, want[r.Via])
			kit.WantOnePayment(t, last.Client(r.Via), r.Key)
		}
	}
}

// startPaymentsWithRetries sends payments again until all of them run.
func startPaymentsWithRetries(t *testing.T, v *kit.Victim, all []kit.RunningPayment) {
	t.Helper()
	kit.Eventually(t, "holder", func() (err error) {
		for i := range all {
			r := &all[i]
			select {
			case a := <-r.Done:
				if !a.AsksToRetry() {
					t.Fatalf("answer of a holder to be = %v", a)
				}
				r.Done = v.Client(r.Via).StartPay(r.Key, kit.Amount, r.Key)
			default:
			}
			if _, ok := v.Stderr.Find("at=before-ledger", kit.LogOp(r.Key)); !ok {
				err = kit.ErrNotYet
			}
		}
		return err
	})
}
