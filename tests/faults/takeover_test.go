package faults

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// Those who wait for a holder that is killed take over by themselves, one of
// them, and all get the one payment without having to retry.
func TestWaitersTakeOverFromAKilledHolder(t *testing.T) {
	t.Parallel()
	for _, step := range []string{"at=before-ledger", "at=after-ledger"} {
		t.Run(step, func(t *testing.T) {
			_, v, other := kit.SystemWithVictim(t, kit.WithFlags("--wait", "60s"))
			const waiters = 10
			all := v.StartPaymentsUpTo(t, "waited-for", step)
			answers := map[kit.Transport]chan kit.Answer{}
			for _, r := range all {
				c, got := other.Client(r.Via), make(chan kit.Answer, waiters)
				for range waiters {
					go func() { got <- c.Pay(r.Key, kit.Amount, r.Key) }()
				}
				answers[r.Via] = got
			}
			for _, r := range all {
				other.WaitLog(t, "event=waited", kit.LogOp(r.Key))
			}
			v.Kill(t)
			kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
				for range waiters {
					a := <-answers[r.Via]
					kit.WantPayment(t, "answer of one who waited", a, kit.WantOnePayment(t, other.Client(r.Via), r.Key))
				}
			})
		})
	}
}

// An operator removes the lock of a running request by hand. Somebody else
// takes it: the first one must neither pay after that, nor remove the lock of
// the second when it is done.
func TestLockRemovedByHand(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		step string
		paid bool
	}{{"at=before-ledger", false}, {"at=after-ledger", true}} {
		t.Run(tt.step, func(t *testing.T) {
			t.Parallel()
			s := kit.NewSystem(t)
			first, second, third := s.Start("the first", kit.WithLatency(kit.VictimLatency)), s.Start("the second", kit.WithLatency(2*kit.VictimLatency), kit.WithFlags("--wait", "30s")), s.Start("the third")
			conn := s.ZooKeeper()
			all := first.StartPaymentsUpTo(t, "by-hand", tt.step)
			for _, r := range all {
				if err := conn.Delete(s.LockPath(r.Key), -1); err != nil {
					t.Fatalf("Delete(lock) = %v", err)
				}
			}
			if tt.paid {
				kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
					a := second.Client(r.Via).Pay(r.Key, kit.Amount, r.Key)
					want := kit.WantOnePayment(t, third.Client(r.Via), r.Key)
					kit.WantPayment(t, "answer of the second", a, want)
					kit.WantPayment(t, "answer of the first", <-r.Done, want)
				})
				return
			}
			next := second.StartPaymentsUpTo(t, "by-hand", "at=before-ledger")
			for i, r := range all { // both at once: the second goes on meanwhile
				a := <-r.Done
				if !s.LockExists(conn, r.Key) {
					t.Errorf("the first has removed the lock of the second over %v", r.Via)
				}
				all[i].Done = kit.Answered(a)
			}
			for _, r := range all {
				first.WantNoLog(t, "at=after-ledger", kit.LogOp(r.Key))
				kit.WantInProgress(t, "duplicate while the second works", third.Client(r.Via), r.Key)
			}
			for i, r := range all {
				t.Run(r.Via.String(), func(t *testing.T) {
					b := <-next[i].Done
					want := kit.WantOnePayment(t, third.Client(r.Via), r.Key)
					kit.WantPayment(t, "answer of the second", b, want)
					wantPaymentOrOpenRefusal(t, r.Done, want)
				})
			}
		})
	}
}
