package clients

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// Sixty requests with one key, at once, over three instances.
func TestDuplicatesOverAllInstancesPayOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	var all []*kit.Instance
	for _, name := range []string{"one", "two", "three"} {
		all = append(all, s.Start(name, kit.WithLatency(200*time.Millisecond)))
	}
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		key := kit.KeyFor(via, "double-click")
		before, err := balanceOf(all[0].Client(via), "alice")
		if err != nil {
			t.Fatal(err)
		}
		answers := sendAtOnce(60, func(i int) kit.Answer { return all[i%len(all)].Client(via).Pay(key, kit.Amount, key) })

		want := kit.WantOnePayment(t, all[0].Client(via), key)
		live := 0
		for _, a := range answers {
			switch {
			case a.IsRefusal("in-progress"), a.IsRefusal("unavailable"): // of a starved instance
			case a.IsPayment() && a.FormErr == nil && a.Payment == want:
				if !a.Replayed {
					live++
				}
			default:
				t.Errorf("answer = %v, want %v, in-progress or unavailable", a, want)
			}
		}
		if live != 1 {
			t.Errorf("%d answers are not marked as replayed, want one", live)
		}
		var wire string
		for _, in := range all {
			a := in.Client(via).PayWithRetries(key, kit.Amount, key)
			kit.WantReplay(t, "repeat at "+in.Name, a, want)
			if wire == "" {
				wire = a.Wire
			}
			if a.Wire != wire {
				t.Errorf("repeat at %s = %v, want %q", in.Name, a, wire)
			}
		}
		if after, err := balanceOf(all[1].Client(via), "alice"); err != nil || after != before-kit.Amount {
			t.Errorf("alice has %d, %v, want %d", after, err, before-kit.Amount)
		}
	})
}

// sendAtOnce sends n requests at once.
func sendAtOnce(n int, send func(i int) kit.Answer) []kit.Answer {
	answers := make([]kit.Answer, n)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range answers {
		wg.Go(func() {
			<-start
			answers[i] = send(i)
		})
	}
	close(start)
	wg.Wait()
	return answers
}

func balanceOf(c kit.Client, account string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), kit.WaitLimit)
	defer cancel()
	return c.Via.Balance(ctx, c, account)
}

// The client hangs up while the payment runs: it is finished all the same.
func TestClientGoneIsPaidAndReplayed(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in := s.Start("one", kit.WithLatency(time.Second))
	for _, step := range []string{"at=before-ledger", "at=after-ledger"} {
		t.Run(step, func(t *testing.T) {
			kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
				key := kit.KeyFor(via, "gone-"+strings.TrimPrefix(step, "at="))
				ctx, hangUp := context.WithCancel(t.Context())
				done := make(chan kit.Answer, 1)
				go func() { done <- in.Client(via).PayWithContext(ctx, key, kit.Amount, key) }()
				in.WaitLog(t, step, kit.LogOp(key))
				hangUp()
				if a := <-done; !errors.Is(a.Err, context.Canceled) {
					t.Fatalf("answer = %v, want the request cancelled", a)
				}
				retry := in.Client(via).PayWithRetries(key, kit.Amount, key)
				kit.WantReplay(t, "retry", retry, kit.WantOnePayment(t, in.Client(via), key))
			})
		})
	}
}

// SIGTERM while payments run: they are finished, stored and answered, and the
// process ends with 0.
func TestSIGTERMFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	in, other := s.Start("one", kit.WithLatency(kit.VictimLatency)), s.Start("other")
	all := in.StartPaymentsUpTo(t, "sigterm", "at=before-ledger")
	if code := in.Terminate(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	kit.ForEachPayment(t, all, func(t *testing.T, r kit.RunningPayment) {
		want := kit.WantOnePayment(t, other.Client(r.Via), r.Key)
		kit.WantPayment(t, "answer", <-r.Done, want)
		// Its session was closed: nobody has to wait for it to time out.
		kit.WantReplay(t, "retry at once", other.Client(r.Via).Pay(r.Key, kit.Amount, r.Key), want)
	})
	if locks := s.Locks(s.ZooKeeper()); len(locks) != 0 {
		t.Errorf("locks = %q, want none", locks)
	}
}
