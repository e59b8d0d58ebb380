package idem_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// full starts as many executions of scope m1 as the limit allows, and returns what
// ends them.
func (b *bundle) full(limit int) (finish func()) {
	b.Helper()
	var all []func() (idem.Result, error)
	for i := range limit {
		all = append(all, b.started(fmt.Sprintf("running-%d", i), "{}", answers(201)))
	}
	return func() {
		b.Helper()
		for _, end := range all {
			if _, err := end(); err != nil {
				b.Errorf("Do() = %v, want the handler's answer", err)
			}
		}
	}
}

func TestOneScopeCannotTakeAllExecutions(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithMaxOpenExecutionsPerScope(2)}})
	b.wantPayment("paid", "{}", 1, false)
	b.wantAnswer("doubt", "{}", 500)
	finish := b.full(2)

	for range 3 {
		_, err := b.do("one too many", "{}")
		b.wantRefused(err, idem.CodeTooManyOpen)
		if refusal, _ := errors.AsType[*idem.Refusal](err); refusal.RetryAfter != time.Second {
			t.Errorf("RetryAfter = %v, want 1s", refusal.RetryAfter)
		}
	}
	// Nothing was locked, and nothing begun.
	lease := b.hold("one too many")
	_ = lease.Release(t.Context())
	b.wantState("one too many", driver.StateNone)

	// Keys that were used are answered as ever, and so are other scopes.
	b.wantPayment("paid", "{}", 1, true)
	_, err := b.do("doubt", "{}")
	b.wantDoubt(err, "doubt", 0)
	b.wantRefusal("running-0", "{}", idem.CodeInProgress)
	b.wantRefusal("running-0", "another body", idem.CodeKeyReused)
	op := b.operation("k", "{}")
	op.Scope = "m2"
	res, err := b.engine.Do(t.Context(), op, b.pay)
	b.wantPaid(res, err, 2, false)

	finish()
	b.wantPayment("one too many", "{}", 3, false)
}

// A key with an open attempt is never limited: its client hears what has
// become of it, or brings it to its end.
func TestKeyWithAnOpenAttemptIsNeverLimited(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithMaxOpenExecutionsPerScope(1)}, policy: func(p *idem.Policy) { p.InDoubt = resolverSays(idem.Applied(created(7))) }})
	id := idem.NewKeyID("m1", "interrupted")
	lease := b.hold("interrupted")
	b.begin(id, "{}", lease.Fence())
	finish := b.full(1)
	defer finish()
	_, err := b.do("interrupted", "{}")
	b.wantRefused(err, idem.CodeInProgress) // its holder lives
	if err := lease.Release(t.Context()); err != nil {
		t.Fatal(err)
	}
	b.wantPayment("interrupted", "{}", 7, true)
}

// While the first request with a key begins, it is not known yet whether another
// body with it is a mismatch. It is told to wait for the key, not for its scope.
func TestRequestThatDiffersFromOneThatBeginsIsNotLimited(t *testing.T) {
	b := setup(t, parts{opts: append(slices.Clone(unhurried), idem.WithMaxOpenExecutionsPerScope(1))})
	slow := b.faults.Slow("Begin", 1)
	done := make(chan error, 1)
	go func() {
		_, err := b.do("k1", "{}")
		done <- err
	}()
	<-slow.Arrived()
	b.wantRefusal("k1", "another body", idem.CodeInProgress)
	b.wantRefusal("k2", "{}", idem.CodeTooManyOpen)
	slow.Release()
	if err := <-done; err != nil {
		t.Fatalf("Do() = %v", err)
	}
}

// An execution whose outcome cannot be stored holds its lock in the background.
// It counts until that is over.
func TestExecutionCountsUntilItsOutcomeIsStored(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithMaxOpenExecutionsPerScope(1), idem.WithSettleTimeout(time.Millisecond)}})
	b.faults.FailBefore("Settle", idemtest.Every, errors.New("store is away"))
	b.wantPayment("k1", "{}", 1, false)
	b.wantRefusal("k2", "{}", idem.CodeTooManyOpen)
	b.faults.Heal("Settle")
	b.eventually("the outcome is stored and k2 runs", func() bool {
		_, err := b.do("k2", "{}")
		return err == nil
	})
	b.wantRuns(2)
	b.wantState("k1", driver.StateCompleted)
}

// A request that waits for another instance has no execution open.
func TestRequestThatWaitsElsewhereDoesNotCount(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithMaxOpenExecutionsPerScope(1)}, policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	b.locks.FailBefore("TryAcquire", 1, driver.ErrLocked)
	b.locks.Before("Wait", 1, func() error {
		b.wantPayment("k2", "{}", 1, false)
		return nil
	})
	b.wantPayment("k1", "{}", 2, false)
}

// However a request ends, it is no longer counted after its end.
func TestOpenExecutionsAreCountedDown(t *testing.T) {
	b := setup(t, parts{opts: []idem.Option{idem.WithMaxOpenExecutionsPerScope(1)}})
	down := errors.New("away")
	for name, fail := range map[string]func(key string){
		"lock service away": func(key string) {
			b.locks.FailBefore("TryAcquire", b.locks.Calls("TryAcquire")+1, down)
			_, _ = b.do(key, "{}")
		},
		"lock taken": func(key string) {
			lease := b.hold(key)
			_, _ = b.do(key, "{}")
			_ = lease.Release(t.Context())
		},
		"begin not answered": func(key string) {
			b.faults.FailBefore("Begin", b.faults.Calls("Begin")+1, down)
			_, _ = b.do(key, "{}")
		},
		"panic": func(key string) {
			defer func() { _ = recover() }()
			_, _ = b.doWith(key, "{}", func(context.Context) (idem.Response, error) { panic("boom") })
		},
		"error": func(key string) {
			_, _ = b.doWith(key, "{}", func(context.Context) (idem.Response, error) { return idem.Response{}, down })
		},
		"no effect": func(key string) { _, _ = b.doWith(key, "{}", answers(401)) },
	} {
		t.Run(name, func(t *testing.T) {
			fail(name)
			b.eventually("another key runs", func() bool {
				_, err := b.do("after "+name, "{}")
				return err == nil
			})
		})
	}
}
