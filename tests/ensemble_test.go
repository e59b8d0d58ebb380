package tests

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The leader of an ensemble is killed while payments run at instances that are
// connected to all of its members.
func TestLeaderKilledUnderRunningPayments(t *testing.T) {
	t.Parallel()
	e := testserver.StartEnsemble(t, 3)
	s := newSystemOn(t, e.Hosts())
	one, two := s.start("one", withLatency(victimLatency)), s.start("two")
	all := one.startPaymentsUpTo(t, "failover", "at=before-ledger")
	e.Leader().Kill()
	for i, r := range all { // paid where the election was quicker than the lease's trust
		all[i].done = answered(<-r.done)
	}
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		want := wantPaidOnce(t, "retry", two.client(r.via), r.key).payment
		wantPaymentOrOpenRefusal(t, r.done, want)
		for _, in := range []*instance{one, two} {
			in.waitReady(t, 200)
			fresh := keyFor(r.via, "fresh-"+in.name)
			wantPaidOnce(t, fresh, in.client(r.via), fresh)
		}
	})
}

// A holder that is cut off from ZooKeeper and runs on stops before anybody else
// can hold its lock.
func TestHolderCutOffStopsWhileItsLockStands(t *testing.T) {
	for _, d := range outages {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			s := newSystem(t)
			p := s.zooKeeperProxy()
			in, other := s.start("the one cut off", throughZooKeeper(p), withLatency(2*waitLimit)), s.start("the other")
			conn := s.zooKeeper()
			s.lockExists(conn, "any") // opens the session
			all := in.startPaymentsUpTo(t, "cut-off", "at=before-ledger")
			d.begin(p)
			for _, r := range all {
				a := <-r.done
				stands := s.lockExists(conn, r.key)
				wantRefusal(t, "answer over "+r.via.String(), a, "ownership-lost")
				if !stands {
					t.Errorf("the lock over %v was gone when the holder stopped, %v after it began", r.via, a.took)
				}
			}
			want := map[transport]payment{}
			for _, r := range all {
				want[r.via] = wantPaidOnce(t, "retry over "+r.via.String(), other.client(r.via), r.key).payment
			}
			d.end(p)
			in.waitReady(t, 200)
			forEachPayment(t, all, func(t *testing.T, r runningPayment) {
				again := in.client(r.via).payWithRetries(r.key, amount, r.key)
				wantPayment(t, "retry at the one that was cut off", again, want[r.via])
				wantOnePayment(t, other.client(r.via), r.key)
			})
		})
	}
}

// An ensemble that was rebuilt says nothing about locks of the old one: what
// was pending under those is not run again.
func TestRebuiltZooKeeperTakesNothingOver(t *testing.T) {
	s, v, other := systemWithVictim(t)
	before := payBefore(t, other)
	all := v.startPaymentsUpTo(t, "old-world", "at=before-ledger")
	v.kill(t)
	other.kill(t)

	rebuilt := *s
	rebuilt.chroot = testserver.Chroot(t)
	in := rebuilt.start("the one in the new world")
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		c := in.client(r.via)
		for range 5 {
			wantInProgress(t, "retry", c, r.key)
		}
		wantNoPayment(t, c, r.key)
		old := keyFor(r.via, "before")
		wantReplay(t, "repeat of an old payment", c.payWithRetries(old, amount, old), before[r.via])
		fresh := keyFor(r.via, "new-world")
		wantPaidOnce(t, "fresh key", c, fresh)
	})
}
