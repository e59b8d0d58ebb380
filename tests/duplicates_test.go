package tests

import (
	"context"
	"errors"
	"strings"
	"sync"
	"testing"
	"time"
)

// Sixty requests with one key, at once, over three instances.
func TestDuplicatesOverAllInstancesPayOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	var all []*instance
	for _, name := range []string{"one", "two", "three"} {
		all = append(all, s.start(name, withLatency(200*time.Millisecond)))
	}
	forEachTransport(t, func(t *testing.T, via transport) {
		key := keyFor(via, "double-click")
		before, err := balanceOf(all[0].client(via), "alice")
		if err != nil {
			t.Fatal(err)
		}
		answers := sendAtOnce(60, func(i int) answer { return all[i%len(all)].client(via).pay(key, amount, key) })

		want := wantOnePayment(t, all[0].client(via), key)
		live := 0
		for _, a := range answers {
			switch {
			case a.isRefusal("in-progress"), a.isRefusal("unavailable"): // of a starved instance
			case a.isPayment() && a.formErr == nil && a.payment == want:
				if !a.replayed {
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
			a := in.client(via).payWithRetries(key, amount, key)
			wantReplay(t, "repeat at "+in.name, a, want)
			if wire == "" {
				wire = a.wire
			}
			if a.wire != wire {
				t.Errorf("repeat at %s = %v, want %q", in.name, a, wire)
			}
		}
		if after, err := balanceOf(all[1].client(via), "alice"); err != nil || after != before-amount {
			t.Errorf("alice has %d, %v, want %d", after, err, before-amount)
		}
	})
}

// sendAtOnce sends n requests at once.
func sendAtOnce(n int, send func(i int) answer) []answer {
	answers := make([]answer, n)
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

func balanceOf(c client, account string) (int64, error) {
	ctx, cancel := context.WithTimeout(context.Background(), waitLimit)
	defer cancel()
	return c.via.balance(ctx, c, account)
}

// With --wait, duplicates get the outcome instead of a refusal, in the instance
// that works and in the others.
func TestDuplicatesThatWaitGetTheOutcome(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one", withLatency(time.Second), withFlags("--wait", "30s")), s.start("two", withFlags("--wait", "30s"))
	forEachTransport(t, func(t *testing.T, via transport) {
		key := keyFor(via, "waiting")
		first := one.client(via).startPay(key, amount, key)
		one.waitLog(t, "at=before-ledger", logOp(key))
		here, there := one.client(via).startPay(key, amount, key), two.client(via).startPay(key, amount, key)
		a := <-first
		want := wantOnePayment(t, two.client(via), key)
		wantPayment(t, "first", a, want)
		if a.replayed {
			t.Errorf("first = %v, want it not marked as replayed", a)
		}
		wantReplay(t, "duplicate here", <-here, want)
		wantReplay(t, "duplicate there", <-there, want)
	})
}

// The client hangs up while the payment runs: it is finished all the same.
func TestClientGoneIsPaidAndReplayed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one", withLatency(time.Second))
	for _, step := range []string{"at=before-ledger", "at=after-ledger"} {
		t.Run(step, func(t *testing.T) {
			forEachTransport(t, func(t *testing.T, via transport) {
				key := keyFor(via, "gone-"+strings.TrimPrefix(step, "at="))
				ctx, hangUp := context.WithCancel(t.Context())
				done := make(chan answer, 1)
				go func() { done <- in.client(via).payWithContext(ctx, key, amount, key) }()
				in.waitLog(t, step, logOp(key))
				hangUp()
				if a := <-done; !errors.Is(a.err, context.Canceled) {
					t.Fatalf("answer = %v, want the request cancelled", a)
				}
				retry := in.client(via).payWithRetries(key, amount, key)
				wantReplay(t, "retry", retry, wantOnePayment(t, in.client(via), key))
			})
		})
	}
}

// SIGTERM while payments run: they are finished, stored and answered, and the
// process ends with 0.
func TestSIGTERMFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, other := s.start("one", withLatency(victimLatency)), s.start("other")
	all := in.startPaymentsUpTo(t, "sigterm", "at=before-ledger")
	if code := in.terminate(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	forEachPayment(t, all, func(t *testing.T, r runningPayment) {
		want := wantOnePayment(t, other.client(r.via), r.key)
		wantPayment(t, "answer", <-r.done, want)
		// Its session was closed: nobody has to wait for it to time out.
		wantReplay(t, "retry at once", other.client(r.via).pay(r.key, amount, r.key), want)
	})
	if locks := s.locks(s.zooKeeper()); len(locks) != 0 {
		t.Errorf("locks = %q, want none", locks)
	}
}

// Insufficient funds are an outcome like any other: it is stored and replayed,
// although the money is there by then.
func TestInsufficientFundsAreReplayed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one")
	forEachTransport(t, func(t *testing.T, via transport) {
		key, c := keyFor(via, "poor"), in.client(via)
		has, err := balanceOf(c, "alice")
		if err != nil {
			t.Fatal(err)
		}
		first := c.pay(key, has+1, key)
		wantRefusal(t, "first", first, "insufficient-funds")
		topUp := c.send(t.Context(), toPayments, order{"bob", "alice", 500, "USD", "top-up"}, keyFor(via, "top-up"))
		if !topUp.isPayment() {
			t.Fatalf("top-up = %v, want it made", topUp)
		}
		again := c.pay(key, has+1, key)
		wantRefusal(t, "repeat", again, "insufficient-funds")
		if again.wire != first.wire || !again.replayed || first.replayed {
			t.Errorf("repeat = %v, want %v replayed", again, first)
		}
		wantNoPayment(t, c, key)
	})
}
