package tests

import (
	"context"
	"errors"
	"net/http"
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
		all = append(all, s.start(name, latency(200*time.Millisecond)))
	}
	const key, duplicates = "double-click", 60
	answers := make([]answer, duplicates)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range answers {
		wg.Go(func() {
			<-start
			answers[i] = all[i%len(all)].demo().pay(key, amount, key)
		})
	}
	close(start)
	wg.Wait()

	want := paidOnce(t, all[0].demo(), key)
	live := 0
	for _, a := range answers {
		switch {
		case a.is(409, "in-progress") && a.header.Get("Retry-After") != "":
		case a.err == nil && a.status == 201 && a.payment == want:
			if !a.replayed() {
				live++
			}
		default:
			t.Errorf("answer = %v, want %v, or 409 in-progress with Retry-After", a, want)
		}
	}
	if live != 1 {
		t.Errorf("%d answers are not marked as replayed, want one", live)
	}
	var body string
	for _, in := range all {
		a := in.demo().pay(key, amount, key)
		original(t, "repeat at "+in.name, a, want)
		if body == "" {
			body = a.body
		}
		if !a.replayed() || a.body != body || a.header.Get("Location") != "/v1/payments/"+want.ID {
			t.Errorf("repeat at %s = %v, want %s replayed", in.name, a, body)
		}
	}
}

// With --wait, duplicates get the outcome instead of a 409, in the instance
// that works and in the others.
func TestDuplicatesThatWaitGetTheOutcome(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one", latency(time.Second), flags("--wait", "30s")), s.start("two", flags("--wait", "30s"))
	const key = "waiting"
	first := one.demo().paying(key, amount, key)
	one.waitLog(t, "at=before-ledger", op(key))
	here, there := one.demo().paying(key, amount, key), two.demo().paying(key, amount, key)
	a := <-first
	want := paidOnce(t, two.demo(), key)
	original(t, "first", a, want)
	for name, c := range map[string]<-chan answer{"here": here, "there": there} {
		d := <-c
		original(t, "duplicate "+name, d, want)
		if !d.replayed() {
			t.Errorf("duplicate %s = %v, want it marked as replayed", name, d)
		}
	}
}

// A mismatch is told at once, even while the first request runs.
func TestMismatchBeatsInProgress(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one", latency(4*time.Second)), s.start("two")
	const key = "mismatch"
	first := one.demo().paying(key, amount, key)
	one.waitLog(t, "at=before-ledger", op(key))
	for _, in := range []*instance{one, two} {
		refused(t, "other amount at "+in.name, in.demo().pay(key, amount+1, key), 422, "key-reused")
		inProgress(t, "duplicate at "+in.name, in.demo(), key)
	}
	original(t, "first", <-first, paidOnce(t, two.demo(), key))
}

// The client hangs up while the payment runs: it is finished all the same.
func TestClientGoneIsPaidAndReplayed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one", latency(time.Second))
	for _, step := range []string{"at=before-ledger", "at=after-ledger"} {
		key := "gone-" + strings.TrimPrefix(step, "at=")
		ctx, hangUp := context.WithCancel(t.Context())
		done := make(chan answer, 1)
		go func() { done <- in.demo().post(ctx, "/v1/payments", key, amount, key) }()
		in.waitLog(t, step, op(key))
		hangUp()
		if a := <-done; !errors.Is(a.err, context.Canceled) {
			t.Fatalf("answer = %v, want the request cancelled", a)
		}
		retry := in.demo().payUntil(patience, key, amount, key)
		original(t, "retry", retry, paidOnce(t, in.demo(), key))
		if !retry.replayed() {
			t.Errorf("retry = %v, want it marked as replayed", retry)
		}
	}
}

// SIGTERM while a payment runs: it is finished, stored and answered, and the
// process ends with 0.
func TestSIGTERMFinishesWhatRuns(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, other := s.start("one", latency(2*time.Second)), s.start("other")
	const key = "sigterm"
	done := in.demo().paying(key, amount, key)
	in.waitLog(t, "at=before-ledger", op(key))
	if code := in.terminate(t); code != 0 {
		t.Errorf("exit code = %d, want 0", code)
	}
	original(t, "answer", <-done, paidOnce(t, other.demo(), key))
	// Its session was closed: nobody has to wait for it to time out.
	retry := other.demo().pay(key, amount, key)
	if !retry.replayed() {
		t.Errorf("retry = %v, want it replayed at once", retry)
	}
	if locks := s.locks(s.zooKeeper()); len(locks) != 0 {
		t.Errorf("locks = %q, want none", locks)
	}
}

// A 402 is an outcome like any other: it is stored and replayed, although the
// money is there by then.
func TestInsufficientFundsAreReplayed(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in := s.start("one")
	const key = "poor"
	first := in.demo().pay(key, 1_000_001, key)
	refused(t, "first", first, 402, "insufficient-funds")
	topUp := order{"bob", "alice", 500, "USD", "top-up"}
	if a := in.demo().send(t.Context(), http.MethodPost, "/v1/payments", topUp.body(), http.Header{"Idempotency-Key": {"top-up"}}); a.status != 201 {
		t.Fatalf("top-up = %v, want 201", a)
	}
	again := in.demo().pay(key, 1_000_001, key)
	if again.body != first.body || again.status != 402 || !again.replayed() {
		t.Errorf("repeat = %v, want %v replayed", again, first)
	}
	paidNever(t, in.demo(), key)
}
