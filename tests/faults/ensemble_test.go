package faults

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The leader of an ensemble is killed while payments run at instances that are
// connected to all of its members.
func TestLeaderKilledUnderRunningPayments(t *testing.T) {
	t.Parallel()
	e := testserver.StartEnsemble(t, 3)
	s := kit.NewSystemOn(t, e.Hosts())
	one, two := s.Start("one", kit.WithLatency(kit.VictimLatency)), s.Start("two")
	all := one.StartPaymentsUpTo(t, "failover", "at=before-ledger")
	e.Leader().Kill()
	for i, r := range all { // paid where the election was quicker than the lease's trust
		all[i].Done = kit.Answered(<-r.Done)
	}
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		want := kit.WantPaidOnce(t, "retry", two.Client(r.Via), r.Key).Payment
		wantPaymentOrOpenRefusal(t, r.Done, want)
		for _, in := range []*kit.Instance{one, two} {
			waitReady(t, in, 200)
			fresh := kit.KeyFor(r.Via, "fresh-"+in.Name)
			kit.WantPaidOnce(t, fresh, in.Client(r.Via), fresh)
		}
	})
}

// A holder that is cut off from ZooKeeper and runs on stops before anybody else
// can hold its lock.
func TestHolderCutOffStopsWhileItsLockStands(t *testing.T) {
	t.Parallel()
	for _, d := range kit.Outages {
		t.Run(d.Name, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSystem(t)
			p := s.ZooKeeperProxy()
			in, other := s.Start("the one cut off", kit.ThroughZooKeeper(p), kit.WithLatency(2*kit.WaitLimit)), s.Start("the other")
			conn := s.ZooKeeper()
			s.LockExists(conn, "any") // opens the session
			all := in.StartPaymentsUpTo(t, "cut-off", "at=before-ledger")
			d.Begin(p)
			for _, r := range all {
				a := <-r.Done
				stands := s.LockExists(conn, r.Key)
				kit.WantRefusal(t, "answer over "+r.Via.String(), a, "ownership-lost")
				if !stands {
					t.Errorf("the lock over %v was gone when the holder stopped, %v after it began", r.Via, a.Took)
				}
			}
			want := map[kit.Transport]kit.Payment{}
			for _, r := range all {
				want[r.Via] = kit.WantPaidOnce(t, "retry over "+r.Via.String(), other.Client(r.Via), r.Key).Payment
			}
			d.End(p)
			waitReady(t, in, 200)
			kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
				again := in.Client(r.Via).PayWithRetries(r.Key, kit.Amount, r.Key)
				kit.WantPayment(t, "retry at the one that was cut off", again, want[r.Via])
				kit.WantOnePayment(t, other.Client(r.Via), r.Key)
			})
		})
	}
}

// An ensemble that was rebuilt says nothing about locks of the old one: what
// was pending under those is not run again.
func TestRebuiltZooKeeperTakesNothingOver(t *testing.T) {
	s, v, other := kit.SystemWithVictim(t)
	before := kit.PayBefore(t, other)
	all := v.StartPaymentsUpTo(t, "old-world", "at=before-ledger")
	v.Kill(t)
	other.Kill(t)

	rebuilt := *s
	rebuilt.Chroot = testserver.Chroot(t)
	in := rebuilt.Start("the one in the new world")
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		c := in.Client(r.Via)
		for range 5 {
			kit.WantInProgress(t, "retry", c, r.Key)
		}
		kit.WantNoPayment(t, c, r.Key)
		old := kit.KeyFor(r.Via, "before")
		kit.WantReplay(t, "repeat of an old payment", c.PayWithRetries(old, kit.Amount, old), before[r.Via])
		fresh := kit.KeyFor(r.Via, "new-world")
		kit.WantPaidOnce(t, "fresh key", c, fresh)
	})
}
