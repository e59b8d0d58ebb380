package clients

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// The transports share their keys: a key that one has used is refused on the
// other, while the payment runs and afterwards.
func TestKeyOfOneTransportIsRefusedOnTheOther(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	one, two := s.Start("one", kit.WithLatency(kit.VictimLatency)), s.Start("two")
	all := one.StartPaymentsUpTo(t, "mine", "at=before-ledger")
	others := func(when string) {
		for i, r := range all {
			via := kit.Transports[1-i]
			for _, in := range []*kit.Instance{one, two} {
				a := in.Client(via).Pay(r.Key, kit.Amount, r.Key)
				kit.WantRefusal(t, fmt.Sprintf("key of %v over %v at %s, %s", r.Via, via, in.Name, when), a, "key-reused")
			}
		}
	}
	others("while it runs")
	for _, r := range all {
		kit.WantPayment(t, "payment over "+r.Via.String(), <-r.Done, kit.WantOnePayment(t, two.Client(r.Via), r.Key))
	}
	others("afterwards")
	for _, r := range all {
		kit.WantReplay(t, "repeat over "+r.Via.String(), two.Client(r.Via).Pay(r.Key, kit.Amount, r.Key), kit.WantOnePayment(t, two.HTTPClient(), r.Key))
	}
}

// Requests with one key come over both transports and to all instances at once:
// there is one payment, those of its transport get it, and the others are told
// that the key is not theirs.
func TestDuplicatesOverBothTransportsPayOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	var all []*kit.Instance
	for _, name := range []string{"one", "two", "three"} {
		all = append(all, s.Start(name, kit.WithLatency(200*time.Millisecond)))
	}
	conn := s.ZooKeeper()
	winners := map[kit.Transport]int{}
	for round := range 4 {
		key := fmt.Sprintf("contested-%d", round)
		at := func(i int) kit.Client {
			return all[i/len(kit.Transports)%len(all)].Client(kit.Transports[i%len(kit.Transports)])
		}
		answers := sendAtOnce(30, func(i int) kit.Answer {
			if late := kit.Transports[round%len(kit.Transports)]; round > 1 && at(i).Via == late {
				waitLockTaken(s, conn, key, at(i)) // else the quicker transport wins each round
			}
			return at(i).Pay(key, kit.Amount, key)
		})

		want := kit.WantOnePayment(t, all[0].HTTPClient(), key)
		var winner kit.Transport
		live := 0
		for i, a := range answers {
			switch {
			case a.IsPayment():
				kit.WantPayment(t, "answer", a, want)
				if winner == nil {
					winner = at(i).Via
				}
				if at(i).Via != winner {
					t.Errorf("%s is paid over %v, and over %v", key, winner, at(i).Via)
				}
				if !a.Replayed {
					live++
				}
			case a.IsRefusal("in-progress"), a.IsRefusal("key-reused"), a.IsRefusal("unavailable"): // of a starved instance
			default:
				t.Errorf("answer over %v = %v, want %v, in-progress, key-reused or unavailable", at(i).Via, a, want)
			}
		}
		if live != 1 {
			t.Errorf("%d answers are not marked as replayed, want one", live)
		}
		for i, a := range answers {
			if at(i).Via == winner && a.IsRefusal("key-reused") {
				t.Errorf("answer over %v, which has paid, = %v", winner, a)
			}
		}
		winners[winner]++
		for _, in := range all {
			for _, via := range kit.Transports {
				again := in.Client(via).PayWithRetries(key, kit.Amount, key)
				if via == winner {
					kit.WantReplay(t, "repeat at "+in.Name, again, want)
				} else {
					kit.WantRefusal(t, "repeat over the other transport at "+in.Name, again, "key-reused")
				}
			}
		}
	}
	t.Logf("rounds won: %v", winners)
	if len(winners) != len(kit.Transports) {
		t.Errorf("rounds won: %v, want some by each transport", winners)
	}
}

// waitLockTaken waits until somebody has the lock of a key, or had it. It is for
// goroutines beside the test's own: what goes wrong shows in what is sent then.
func waitLockTaken(s *kit.System, conn *zk.Conn, key string, c kit.Client) {
	_ = kit.Poll(kit.WaitLimit, func() error {
		if found, _, err := conn.Exists(s.LockPath(key)); err != nil || found {
			return err
		}
		if state, err := c.KeyState(key); err != nil || state == "none" {
			return kit.ErrNotYet
		}
		return nil
	})
}
