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
			_, v, other := failover(t, flags("--wait", "60s"))
			const key, waiters = "waited-for", 20
			reachLog(step)(t, v, key)
			answers := make(chan answer, waiters)
			for range waiters {
				go func() { answers <- other.demo().pay(key, amount, key) }()
			}
			other.waitLog(t, "event=waited", op(key))
			v.kill(t)
			for range waiters {
				a := <-answers
				original(t, "answer of one who waited", a, paidOnce(t, other.demo(), key))
			}
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
			first, second, third := s.start("the first", latency(victimLatency)), s.start("the second", latency(2*victimLatency)), s.start("the third")
			conn := s.zooKeeper()
			const key = "by-hand"
			done := first.demo().paying(key, amount, key)
			first.waitLog(t, tt.step, op(key))
			if err := conn.Delete(s.lockPath(key), -1); err != nil {
				t.Fatalf("Delete(lock) = %v", err)
			}
			if tt.paid {
				a := second.demo().pay(key, amount, key)
				want := paidOnce(t, third.demo(), key)
				original(t, "answer of the second", a, want)
				original(t, "answer of the first", <-done, want)
				return
			}
			next := second.demo().paying(key, amount, key)
			second.waitLog(t, "at=before-ledger", op(key))
			a := <-done
			if !s.lockExists(conn, key) {
				t.Error("the first has removed the lock of the second")
			}
			first.neverLogged(t, "at=after-ledger", op(key))
			inProgress(t, "duplicate while the second works", third.demo(), key)
			b := <-next
			want := paidOnce(t, third.demo(), key)
			original(t, "answer of the second", b, want)
			woken(t, answered(a), want)
		})
	}
}

// Redis is away when the outcome is to be stored, and the process is told to
// end. It gives up after its grace period, says so by its exit code, and leaves
// the lock to its session, so that nobody starts before that is over.
func TestSIGTERMWithAnUnsavedOutcomeLeavesTheLock(t *testing.T) {
	s, v, other := failover(t)
	const key = "abandoned"
	conn := s.zooKeeper()
	s.lockExists(conn, key) // opens the session
	done := reachLog("at=after-ledger")(t, v, key)
	downs[0].down(v.redis)
	a := <-done
	want := paidOnce(t, other.demo(), key)
	original(t, "answer", a, want)
	start := time.Now()
	code := v.terminate(t)
	stands := s.lockExists(conn, key)
	if code == 0 {
		t.Errorf("exit code = 0 after %v, want one that says that work was abandoned", time.Since(start))
	}
	if !stands {
		t.Error("the lock went with the process, want it to outlive it")
	}
	inProgress(t, "repeat elsewhere", other.demo(), key)
	original(t, "repeat after the session", other.demo().payUntil(patience, key, amount, key), want)
	paidOnce(t, other.demo(), key)
}
