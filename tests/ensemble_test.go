package tests

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// The leader of an ensemble is killed while payments run at instances that are
// connected to all of its members.
func TestLeaderKilledUnderRunningPayments(t *testing.T) {
	t.Parallel()
	e := testserver.StartEnsemble(t, 3)
	s := newSystemOn(t, e.Hosts())
	one, two := s.start("one", latency(victimLatency)), s.start("two")
	const key = "failover"
	done := one.demo().paying(key, amount, key)
	one.waitLog(t, "at=before-ledger", op(key))
	e.Leader().Kill()
	a := <-done // paid where the election was quicker than the lease's trust
	retry := two.demo().payUntil(patience, key, amount, key)
	want := paidOnce(t, two.demo(), key)
	original(t, "retry", retry, want)
	woken(t, answered(a), want)
	for _, in := range []*instance{one, two} {
		in.waitReady(t, 200)
		fresh := "fresh at " + in.name
		a := in.demo().payUntil(patience, `"`+fresh+`"`, amount, fresh)
		original(t, fresh, a, paidOnce(t, in.demo(), fresh))
	}
}

// answered is an answer that has come already, as one to come.
func answered(a answer) <-chan answer {
	c := make(chan answer, 1)
	c <- a
	return c
}

// A holder that is cut off from ZooKeeper and runs on stops before anybody else
// can hold its lock.
func TestHolderCutOffStopsWhileItsLockStands(t *testing.T) {
	for _, d := range downs {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.zooKeeperProxy()
			in, other := s.start("the one cut off", throughZooKeeper(p), latency(2*patience)), s.start("the other")
			conn := s.zooKeeper()
			const key = "cut-off"
			s.lockExists(conn, key) // opens the session
			done := in.demo().paying(key, amount, key)
			in.waitLog(t, "at=before-ledger", op(key))
			d.down(p)
			a := <-done
			stands := s.lockExists(conn, key)
			refused(t, "answer", a, 503, "ownership-lost")
			if !stands {
				t.Errorf("the lock was gone when the holder stopped, %v after it began", a.took)
			}
			retry := other.demo().payUntil(patience, key, amount, key)
			want := paidOnce(t, other.demo(), key)
			original(t, "retry", retry, want)
			d.up(p)
			in.waitReady(t, 200)
			original(t, "retry at the one that was cut off", in.demo().payUntil(patience, key, amount, key), want)
		})
	}
}

// An ensemble that was rebuilt says nothing about locks of the old one: what
// was pending under those is not run again.
func TestRebuiltZooKeeperTakesNothingOver(t *testing.T) {
	s, v, other := failover(t)
	const key = "old-world"
	reachLog("at=before-ledger")(t, v, key)
	v.kill(t)
	other.kill(t)

	rebuilt := *s
	rebuilt.chroot = testserver.Chroot(t)
	in := rebuilt.start("the one in the new world")
	for range 5 {
		inProgress(t, "retry", in.demo(), key)
	}
	paidNever(t, in.demo(), key)
	if a := in.demo().pay("warm-up", 1, "warm-up"); !a.replayed() {
		t.Errorf("repeat of an old payment = %v, want it replayed", a)
	}
	a := in.demo().pay("new-world", amount, "new-world")
	original(t, "fresh key", a, paidOnce(t, in.demo(), "new-world"))
}
