package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

func runsAgain(p *idem.Policy) { p.InDoubt = idem.RunAgain() }

// inDoubts leave a key whose first attempt, with body "a", is in doubt.
var inDoubts = map[string]func(*bundle){
	"interrupted": func(b *bundle) { b.interrupted("k", "a") },
	"answered":    func(b *bundle) { _, _ = b.doWith("k", "a", answers(500)) },
}

// TestRunAgainKeepsTheBinding: under one key and one downstream key only one
// request runs, however its attempts end.
func TestRunAgainKeepsTheBinding(t *testing.T) {
	noEffect := func(ctx context.Context) (idem.Response, error) {
		idem.NoEffect(ctx)
		return idem.Response{Status: 200}, nil
	}
	for how, leave := range inDoubts {
		for name, again := range map[string]idem.Handler{
			"before the second attempt": nil,
			"answers 429":               answers(429),
			"answers 500":               answers(500),
			"declares no effect":        noEffect,
			"declares no effect and fails": func(ctx context.Context) (idem.Response, error) {
				idem.NoEffect(ctx)
				return idem.Response{}, errors.New("boom")
			},
		} {
			t.Run(how+", "+name, func(t *testing.T) {
				b := setup(t, parts{policy: runsAgain})
				leave(b)
				attempts := uint32(1)
				if again != nil {
					_, _ = b.doWith("k", "a", again)
					attempts++
					b.wantState("k", driver.StateUnknown)
				}
				b.wantRefusal("k", "b", idem.CodeKeyReused)
				b.wantRuns(0)
				res := b.wantPayment("k", "a", 1, false)
				if res.Attempt != attempts+1 {
					t.Errorf("attempt = %d, want %d", res.Attempt, attempts+1)
				}
				b.wantPayment("k", "a", 1, true)
			})
		}
	}
}

// TestRunAgainWithoutEffectIsNoSuccess: of the attempt before it the outcome is still
// in doubt. A consumer must not acknowledge its message, and a repeat is not told the
// answer as the outcome.
func TestRunAgainWithoutEffectIsNoSuccess(t *testing.T) {
	noEffect := func(ctx context.Context) (idem.Response, error) {
		idem.NoEffect(ctx)
		return idem.Response{Status: 200}, nil
	}
	for name, operation := range map[string]func(*bundle) idem.Operation{
		"direct": func(b *bundle) idem.Operation { return b.direct("k", "a") },
		"HTTP":   func(b *bundle) idem.Operation { return b.operation("k", "a") },
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: runsAgain})
			op := operation(b)
			_, _ = b.engine.Do(t.Context(), op, func(context.Context) (idem.Response, error) { return idem.Response{}, errDown })
			_, err := b.engine.Do(t.Context(), op, noEffect)
			b.wantDoubt(err, "k", time.Second)
			leave := b.policy
			leave.InDoubt = idem.LeaveUnknown()
			repeat := op
			repeat.Policy = &leave
			_, err = b.engine.Do(t.Context(), repeat, b.pay) // no replay of the 200
			b.wantRefused(err, idem.CodeOutcomeUnknown)
			_, err = b.engine.Do(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
				idem.NoEffect(ctx)
				return idem.Response{}, errDown
			})
			if name == "HTTP" {
				b.wantDoubt(err, "k", time.Second)
			} else if err != errDown { //nolint:errorlint // the handler's own error
				t.Errorf("Do() = %v, want the error of the handler", err)
			}
			_, err = b.engine.Do(t.Context(), repeat, b.pay)
			b.wantRefused(err, idem.CodeOutcomeUnknown)
			b.wantRuns(0)
		})
	}
}

// TestRunAgainThatIsAbortedKeepsTheBinding: the Begin of the second attempt has no
// answer, and may or may not have arrived.
func TestRunAgainThatIsAbortedKeepsTheBinding(t *testing.T) {
	for how, leave := range inDoubts {
		for name, fail := range map[string]func(*bundle) *idemtest.Late{
			"applied": func(b *bundle) *idemtest.Late {
				b.faults.LoseReply("Begin", b.faults.Calls("Begin")+1, nil)
				return nil
			},
			"not applied": func(b *bundle) *idemtest.Late { return b.faults.DeliverLate("Begin", b.faults.Calls("Begin")+1, nil) },
		} {
			t.Run(fmt.Sprintf("%s, %s", how, name), func(t *testing.T) {
				b := setup(t, parts{policy: runsAgain})
				leave(b)
				// The first Begin finds the attempt in doubt, the second starts over.
				begins := idemtest.NewFaultyStore(b.faults)
				var late *idemtest.Late
				begins.Before("Begin", 2, func() error { late = fail(b); return nil })
				e := b.another(b.locks, begins, idem.WithObserver(b.observe))
				b.wantRefusalBy(e, b.operation("k", "a"), idem.CodeUnavailable)
				b.wantRuns(0)
				b.wantUndone("k")
				if late != nil {
					if err := late.Deliver(); err != nil {
						t.Errorf("late Begin = %v, want it kept", err)
					}
				}
				b.wantState("k", driver.StateUnknown)
				b.wantRefusal("k", "b", idem.CodeKeyReused)
				b.wantPayment("k", "a", 1, false)
			})
		}
	}
}

// TestRunAgainStartsFromTheOpenAttemptAlone: no other state is seen in between, so
// no other request can begin there.
func TestRunAgainStartsFromTheOpenAttemptAlone(t *testing.T) {
	b := setup(t, parts{policy: runsAgain})
	b.interrupted("k", "a")
	settled := b.faults.Calls("Settle")
	_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		if n := b.faults.Calls("Settle") - settled; n != 0 {
			t.Errorf("%d Settles before the second attempt, want none", n)
		}
		return b.pay(ctx)
	})
}

// TestResolveLeavesToTheNextRequestWhatRunsAgain: nothing but the sweeper gives such
// a key back, when it is old.
func TestResolveLeavesToTheNextRequestWhatRunsAgain(t *testing.T) {
	for how, leave := range inDoubts {
		t.Run(how, func(t *testing.T) {
			b := setup(t, parts{policy: runsAgain})
			leave(b)
			rec, err := b.engine.Resolve(t.Context(), idem.NewKeyID("m1", "k"), &b.policy)
			if err != nil || rec.State != driver.StateUnknown {
				t.Errorf("Resolve() = %v, %v, want unknown", rec.State, err)
			}
			b.wantRefusal("k", "b", idem.CodeKeyReused)
		})
	}
}
