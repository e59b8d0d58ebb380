package tests

import (
	"fmt"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"
)

// The transports share their keys: a key that one has used is refused on the
// other, while the payment runs and afterwards.
func TestKeyOfOneTransportIsRefusedOnTheOther(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one", withLatency(victimLatency)), s.start("two")
	all := one.startPaymentsUpTo(t, "mine", "at=before-ledger")
	others := func(when string) {
		for i, r := range all {
			via := transports[1-i]
			for _, in := range []*instance{one, two} {
				a := in.client(via).pay(r.key, amount, r.key)
				wantRefusal(t, fmt.Sprintf("key of %v over %v at %s, %s", r.via, via, in.name, when), a, "key-reused")
			}
		}
	}
	others("while it runs")
	for _, r := range all {
		wantPayment(t, "payment over "+r.via.String(), <-r.done, wantOnePayment(t, two.client(r.via), r.key))
	}
	others("afterwards")
	for _, r := range all {
		wantReplay(t, "repeat over "+r.via.String(), two.client(r.via).pay(r.key, amount, r.key), wantOnePayment(t, two.httpClient(), r.key))
	}
}

// Requests with one key come over both transports and to all instances at once:
// there is one payment, those of its transport get it, and the others are told
// that the key is not theirs.
func TestDuplicatesOverBothTransportsPayOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var all []*instance
	for _, name := range []string{"one", "two", "three"} {
		all = append(all, s.start(name, withLatency(200*time.Millisecond)))
	}
	conn := s.zooKeeper()
	winners := map[transport]int{}
	for round := range 6 {
		key := fmt.Sprintf("contested-%d", round)
		at := func(i int) client { return all[i/len(transports)%len(all)].client(transports[i%len(transports)]) }
		answers := sendAtOnce(60, func(i int) answer {
			if late := transports[round%len(transports)]; round > 1 && at(i).via == late {
				s.waitLockTaken(conn, key, at(i)) // else the quicker transport wins each round
			}
			return at(i).pay(key, amount, key)
		})

		want := wantOnePayment(t, all[0].httpClient(), key)
		var winner transport
		live := 0
		for i, a := range answers {
			switch {
			case a.isPayment():
				wantPayment(t, "answer", a, want)
				if winner == nil {
					winner = at(i).via
				}
				if at(i).via != winner {
					t.Errorf("%s is paid over %v, and over %v", key, winner, at(i).via)
				}
				if !a.replayed {
					live++
				}
			case a.isRefusal("in-progress"), a.isRefusal("key-reused"), a.isRefusal("unavailable"): // of a starved instance
			default:
				t.Errorf("answer over %v = %v, want %v, in-progress, key-reused or unavailable", at(i).via, a, want)
			}
		}
		if live != 1 {
			t.Errorf("%d answers are not marked as replayed, want one", live)
		}
		for i, a := range answers {
			if at(i).via == winner && a.isRefusal("key-reused") {
				t.Errorf("answer over %v, which has paid, = %v", winner, a)
			}
		}
		winners[winner]++
		for _, in := range all {
			for _, via := range transports {
				again := in.client(via).payWithRetries(key, amount, key)
				if via == winner {
					wantReplay(t, "repeat at "+in.name, again, want)
				} else {
					wantRefusal(t, "repeat over the other transport at "+in.name, again, "key-reused")
				}
			}
		}
	}
	t.Logf("rounds won: %v", winners)
	if len(winners) != len(transports) {
		t.Errorf("rounds won: %v, want some by each transport", winners)
	}
}

// waitLockTaken waits until somebody has the lock of a key, or had it. It is for
// goroutines beside the test's own: what goes wrong shows in what is sent then.
func (s *system) waitLockTaken(conn *zk.Conn, key string, c client) {
	_ = poll(waitLimit, func() error {
		if found, _, err := conn.Exists(s.lockPath(key)); err != nil || found {
			return err
		}
		if state, err := c.keyState(key); err != nil || state == "none" {
			return errNotYet
		}
		return nil
	})
}
