package tests

import (
	"slices"
	"testing"
)

// woken is what a client of a paused holder may be told in the end: the one
// payment, or that its outcome has to be asked for again.
func woken(t *testing.T, done <-chan answer, want payment) {
	t.Helper()
	a := <-done
	switch {
	case a.paid() && a.flaw == nil && a.payment == want:
	case a.is("ownership-lost"), a.is("unavailable"), a.is("outcome-unknown"), a.is("store-lost"):
	default:
		t.Errorf("answer of the paused holder = %v, want %v, or a refusal that leaves it open", a, want)
	}
}

// waitSucceedable waits until nobody holds the locks: their holder's session
// is over.
func (s *system) waitSucceedable(all []running) {
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
			s, v, other := failover(t)
			all := p.reach(t, v, "paused")
			v.pause(t)
			s.waitSucceedable(all)

			want := map[transport]payment{}
			for _, r := range all {
				retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
				want[r.via] = paidOnce(t, other.over(r.via), r.key)
				original(t, "retry over "+r.via.String(), retry, want[r.via])
			}

			v.resume(t)
			v.deliver()
			overEachOf(t, all, func(t *testing.T, r running) {
				woken(t, r.done, want[r.via])
				if p.reports { // and the store did not listen
					v.waitLog(t, "event=superseded", op(r.key))
				}
				for _, in := range []*instance{v.instance, other} {
					again := in.over(r.via).payUntil(patience, r.key, amount, r.key)
					original(t, "retry at "+in.name, again, want[r.via])
				}
				paidOnce(t, other.over(r.via), r.key)
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
			s, v, other := failover(t, flags("--resolver", "none"))
			all := p.reach(t, v, "paused-unknown")
			v.pause(t)
			s.waitSucceedable(all)
			for _, r := range all {
				retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
				refused(t, "retry over "+r.via.String(), retry, "outcome-unknown")
			}

			v.resume(t)
			v.deliver()
			overEachOf(t, all, func(t *testing.T, r running) {
				c := other.over(r.via)
				if !p.paid {
					if a := <-r.done; a.paid() {
						t.Errorf("answer of the paused holder = %v, want no payment", a)
					}
					a := c.pay(r.key, amount, r.key)
					if p.aborts && a.paid() {
						// The one that woke up has given its attempt back: it has
						// never run, and the unknown outcome was still open to it.
						v.waitLog(t, "event=begin-aborted", op(r.key))
						original(t, "retry after the abort", a, paidOnce(t, c, r.key))
						return
					}
					if a.paid() {
						t.Errorf("retry = %v, want no payment", a)
					}
					paidNever(t, c, r.key)
					return
				}
				want := paidOnce(t, c, r.key)
				woken(t, r.done, want)
				if a := c.pay(r.key, amount, r.key); !a.is("outcome-unknown") {
					original(t, "retry after the report", a, want)
				}
				paidOnce(t, c, r.key)
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
	v, next := s.startVictim(), s.start("the next", latency(victimLatency), flags("--wait", "30s"))
	all := v.reachOverEach(t, "both", "at=before-ledger")
	v.pause(t)
	s.waitSucceedable(all)
	second := next.reachOverEach(t, "both", "at=before-ledger")
	v.resume(t)

	for i, r := range all {
		t.Run(r.via.String(), func(t *testing.T) {
			b := <-second[i].done
			want := paidOnce(t, next.over(r.via), r.key)
			original(t, "answer of the next holder", b, want)
			woken(t, r.done, want)
			v.neverLogged(t, "at=after-ledger", op(r.key))
			original(t, "retry", v.over(r.via).payUntil(patience, r.key, amount, r.key), want)
		})
	}
}

// All of several holders that were paused one after the other wake up at once.
func TestSeveralPausedHoldersWakeAtOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var victims []*victim
	var held [][]running
	for range 2 {
		v := s.startVictim()
		all := v.payOverEach("chain")
		v.insist(t, all) // the locks of the one before have to go
		v.pause(t)
		s.waitSucceedable(all)
		victims, held = append(victims, v), append(held, all)
	}
	last := s.start("the last")
	want := map[transport]payment{}
	for _, r := range held[0] {
		retry := last.over(r.via).payUntil(patience, r.key, amount, r.key)
		want[r.via] = paidOnce(t, last.over(r.via), r.key)
		original(t, "retry over "+r.via.String(), retry, want[r.via])
	}
	for _, v := range slices.Backward(victims) {
		v.resume(t)
	}
	for _, all := range held {
		for _, r := range all {
			woken(t, r.done, want[r.via])
			paidOnce(t, last.over(r.via), r.key)
		}
	}
}

// insist sends payments again until all of them run.
func (v *victim) insist(t *testing.T, all []running) {
	t.Helper()
	eventually(t, "holder", func() (err error) {
		for i := range all {
			r := &all[i]
			select {
			case a := <-r.done:
				if !a.comeBack() {
					t.Fatalf("answer of a holder to be = %v", a)
				}
				r.done = v.over(r.via).paying(r.key, amount, r.key)
			default:
			}
			if _, ok := v.stderr.find("at=before-ledger", op(r.key)); !ok {
				err = errNotYet
			}
		}
		return err
	})
}
