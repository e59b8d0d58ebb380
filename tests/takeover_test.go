package tests

import (
	"testing"
	"time"
)

// Those who wait for a holder that is killed take over by themselves, one of
// them, and all get the one payment without having to retry.
func TestWaitersTakeOverFromAKilledHolder(t *testing.T) {
	for _, step := range []string{"at=before-ledger", "at=after-ledger"} {
		t.Run(step, func(t *testing.T) {
			_, v, other := systemWithVictim(t, withFlags("--wait", "60s"))
			const waiters = 10
			all := v.startPaymentsUpTo(t, "waited-for", step)
			answers := map[transport]chan answer{}
			for _, r := range all {
				c, got := other.client(r.via), make(chan answer, waiters)
				for range waiters {
					go func() { got <- c.pay(r.key, amount, r.key) }()
				}
				answers[r.via] = got
			}
			for _, r := range all {
				other.waitLog(t, "event=waited", logOp(r.key))
			}
			v.kill(t)
			forEachPayment(t, all, func(t *testing.T, r runningPayment) {
				for range waiters {
					a := <-answers[r.via]
					wantPayment(t, "answer of one who waited", a, wantOnePayment(t, other.client(r.via), r.key))
				}
			})
		})
	}
}

// An operator removes the lock of a running request by hand. Somebody else
// takes it: the first one must neither pay after that, nor remove the lock of
// the second when it is done.
func TestLockRemovedByHand(t *testing.T) {
	for _, tt := range []struct {
		step string
		paid bool
	}{{"at=before-ledger", false}, {"at=after-ledger", true}} {
		t.Run(tt.step, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			first, second, third := s.start("the first", withLatency(victimLatency)), s.start("the second", withLatency(2*victimLatency), withFlags("--wait", "30s")), s.start("the third")
			conn := s.zooKeeper()
			all := first.startPaymentsUpTo(t, "by-hand", tt.step)
			for _, r := range all {
				if err := conn.Delete(s.lockPath(r.key), -1); err != nil {
					t.Fatalf("Delete(lock) = %v", err)
				}
			}
			if tt.paid {
				forEachPayment(t, all, func(t *testing.T, r runningPayment) {
					a := second.client(r.via).pay(r.key, amount, r.key)
					want := wantOnePayment(t, third.client(r.via), r.key)
					wantPayment(t, "answer of the second", a, want)
					wantPayment(t, "answer of the first", <-r.done, want)
				})
				return
			}
			next := second.startPaymentsUpTo(t, "by-hand", "at=before-ledger")
			for i, r := range all { // both at once: the second goes on meanwhile
				a := <-r.done
				if !s.lockExists(conn, r.key) {
					t.Errorf("the first has removed the lock of the second over %v", r.via)
				}
				all[i].done = answered(a)
			}
			for _, r := range all {
				first.wantNoLog(t, "at=after-ledger", logOp(r.key))
				wantInProgress(t, "duplicate while the second works", third.client(r.via), r.key)
			}
			for i, r := range all {
				t.Run(r.via.String(), func(t *testing.T) {
					b := <-next[i].done
					want := wantOnePayment(t, third.client(r.via), r.key)
					wantPayment(t, "answer of the second", b, want)
					wantPaymentOrOpenRefusal(t, r.done, want)
				})
			}
		})
	}
}

// Redis is away when the outcome is to be stored, and the process is told to
// end. It gives up after its grace period, says so by its exit code, and leaves
// the lock to its session, so that nobody starts before that is over.
func TestSIGTERMWithAnUnsavedOutcomeLeavesTheLock(t *testing.T) {
	s, v, other := systemWithVictim(t)
	conn := s.zooKeeper()
	s.lockExists(conn, "any") // opens the session
	all := v.startPaymentsUpTo(t, "abandoned", "at=after-ledger")
	outages[0].begin(v.redis)
	want := map[transport]payment{}
	for _, r := range all {
		a := <-r.done
		want[r.via] = wantOnePayment(t, other.client(r.via), r.key)
		wantPayment(t, "answer over "+r.via.String(), a, want[r.via])
	}
	start := time.Now()
	code := v.terminate(t)
	stand := true
	for _, r := range all {
		stand = s.lockExists(conn, r.key) && stand
	}
	if code == 0 {
		t.Errorf("exit code = 0 after %v, want one that says that work was abandoned", time.Since(start))
	}
	if !stand {
		t.Error("a lock went with the process, want it to outlive it")
	}
	for _, r := range all {
		wantInProgress(t, "repeat elsewhere", other.client(r.via), r.key)
	}
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := other.client(r.via)
		wantPayment(t, "repeat after the session", c.payWithRetries(r.key, amount, r.key), want[r.via])
		wantOnePayment(t, c, r.key)
	})
}
