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
	all := one.reachOverEach(t, "failover", "at=before-ledger")
	e.Leader().Kill()
	for i, r := range all { // paid where the election was quicker than the lease's trust
		all[i].done = answered(<-r.done)
	}
	overEachOf(t, all, func(t *testing.T, r running) {
		retry := two.over(r.via).payUntil(patience, r.key, amount, r.key)
		want := paidOnce(t, two.over(r.via), r.key)
		original(t, "retry", retry, want)
		woken(t, r.done, want)
		for _, in := range []*instance{one, two} {
			in.waitReady(t, 200)
			fresh := keyOver(r.via, "fresh-"+in.name)
			a := in.over(r.via).payUntil(patience, fresh, amount, fresh)
			original(t, fresh, a, paidOnce(t, in.over(r.via), fresh))
		}
	})
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
			s.lockExists(conn, "any") // opens the session
			all := in.reachOverEach(t, "cut-off", "at=before-ledger")
			d.down(p)
			for _, r := range all {
				a := <-r.done
				stands := s.lockExists(conn, r.key)
				refused(t, "answer over "+r.via.String(), a, "ownership-lost")
				if !stands {
					t.Errorf("the lock over %v was gone when the holder stopped, %v after it began", r.via, a.took)
				}
			}
			want := map[transport]payment{}
			for _, r := range all {
				retry := other.over(r.via).payUntil(patience, r.key, amount, r.key)
				want[r.via] = paidOnce(t, other.over(r.via), r.key)
				original(t, "retry over "+r.via.String(), retry, want[r.via])
			}
			d.up(p)
			in.waitReady(t, 200)
			overEachOf(t, all, func(t *testing.T, r running) {
				again := in.over(r.via).payUntil(patience, r.key, amount, r.key)
				original(t, "retry at the one that was cut off", again, want[r.via])
				paidOnce(t, other.over(r.via), r.key)
			})
		})
	}
}

// An ensemble that was rebuilt says nothing about locks of the old one: what
// was pending under those is not run again.
func TestRebuiltZooKeeperTakesNothingOver(t *testing.T) {
	s, v, other := failover(t)
	before := payBefore(t, other)
	all := v.reachOverEach(t, "old-world", "at=before-ledger")
	v.kill(t)
	other.kill(t)

	rebuilt := *s
	rebuilt.chroot = testserver.Chroot(t)
	in := rebuilt.start("the one in the new world")
	overEachOf(t, all, func(t *testing.T, r running) {
		c := in.over(r.via)
		for range 5 {
			inProgress(t, "retry", c, r.key)
		}
		paidNever(t, c, r.key)
		old := keyOver(r.via, "before")
		replayed(t, "repeat of an old payment", c.payUntil(patience, old, amount, old), before[r.via])
		fresh := keyOver(r.via, "new-world")
		a := c.payUntil(patience, fresh, amount, fresh)
		original(t, "fresh key", a, paidOnce(t, c, fresh))
	})
}
