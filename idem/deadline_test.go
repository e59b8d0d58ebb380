package idem_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// The deadline ends the handler's context and nothing else. A handler that goes on
// holds its lock until it returns, whether it has looked at its context or not.
func TestLockOutlivesTheDeadline(t *testing.T) {
	for name, awaitDeadline := range map[string]func(context.Context){
		"of a handler that waits for its context": func(ctx context.Context) { <-ctx.Done() },
		"of a handler that does not look at it":   func(context.Context) { time.Sleep(2 * time.Second) },
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Second }})
				var id driver.KeyID
				held := func() bool {
					synctest.Wait() // for all that the deadline has set off
					_, held := b.locker.Holder(id)
					return held
				}
				res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
					x, _ := idem.FromContext(ctx)
					id = x.KeyID
					awaitDeadline(ctx)
					if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
						t.Errorf("the handler's context ended with %v", ctx.Err())
					}
					for _, late := range []time.Duration{0, time.Minute} {
						time.Sleep(late)
						if !held() {
							t.Errorf("%v after the deadline the lock is free, and the handler runs", late)
						}
					}
					return b.pay(ctx)
				})
				b.wantPaid(res, err, 1, false)
				if held() {
					t.Error("the lock is still held after the handler has returned")
				}
			})
		})
	}
}

func TestCallerGoneDoesNotCancelTheHandler(t *testing.T) {
	b := setup(t, parts{})
	ctx, cancel := context.WithCancel(context.Background())
	type key struct{}
	op := b.operation("k", "a")
	_, err := b.engine.Do(context.WithValue(ctx, key{}, 1), op, func(hctx context.Context) (idem.Response, error) {
		cancel()
		if hctx.Err() != nil || hctx.Value(key{}) != 1 {
			t.Errorf("handler's context: err %v, value %v; want alive, with the caller's values", hctx.Err(), hctx.Value(key{}))
		}
		return b.pay(hctx)
	})
	if err != nil {
		t.Fatalf("Do() = %v", err)
	}
	b.wantPayment("k", "a", 1, true)
	_, err = b.engine.Do(ctx, b.operation("k3", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
}

// TestHandlerCutOffByItsDeadlineIsInDoubt unless it says that it succeeded:
// what it answers may be nothing but the cancellation, seen halfway.
func TestHandlerCutOffByItsDeadlineIsInDoubt(t *testing.T) {
	for status, want := range map[int]driver.State{
		201: driver.StateCompleted, 302: driver.StateCompleted, 422: driver.StateUnknown, 429: driver.StateUnknown, 403: driver.StateUnknown, 504: driver.StateUnknown,
	} {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Millisecond }})
		key := fmt.Sprintf("k%d", status)
		res, err := b.doWith(key, "a", func(ctx context.Context) (idem.Response, error) {
			<-ctx.Done()
			return idem.Response{Status: status}, nil
		})
		if want == driver.StateUnknown && status < 500 {
			b.wantDoubt(err, key, 0) // the client would take the answer for final
		} else if err != nil || res.Response.Status != status {
			t.Errorf("Do() = %v, %v, want %d", res, err, status)
		}
		b.wantState(key, want)
	}
	b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Millisecond }})
	_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		<-ctx.Done()
		idem.NoEffect(ctx)
		return idem.Response{Status: 504}, nil
	})
	b.wantState("k", driver.StateReleased)
}

// wantEnded checks what a context allows after its handler has returned.
func (b *bundle) wantEnded(ctx context.Context) {
	b.Helper()
	before := b.saw(telemetry.EventTooLate)
	if left, err := idem.CheckOwner(ctx); left != 0 || !errors.Is(err, idem.ErrExecutionEnded) {
		b.Errorf("CheckOwner() = %v, %v, want %v", left, err, idem.ErrExecutionEnded)
	}
	if key, err := idem.DownstreamKey(ctx, "bank"); key != "" || !errors.Is(err, idem.ErrExecutionEnded) {
		b.Errorf("DownstreamKey() = %q, %v, want %v", key, err, idem.ErrExecutionEnded)
	}
	if n := b.saw(telemetry.EventTooLate) - before; n != 2 {
		b.Errorf("%d events, want 2", n)
	}
	if x, ok := idem.FromContext(ctx); !ok || x.OperationID == "" {
		b.Errorf("FromContext() = %+v, %v, want the execution that has ended", x, ok)
	}
}

// What a handler has left running must not send anything after the handler has
// returned: another owner may have the lock.
func TestNothingIsSentAfterTheHandlerHasReturned(t *testing.T) {
	for name, end := range map[string]func(ctx context.Context) (idem.Response, error){
		"completed": answers(201),
		"in doubt":  answers(503),
		"no effect": answers(429),
		"error":     func(context.Context) (idem.Response, error) { return idem.Response{}, errors.New("boom") },
		"panic":     func(context.Context) (idem.Response, error) { panic("boom") },
		"cancelled": func(ctx context.Context) (idem.Response, error) { <-ctx.Done(); return idem.Response{Status: 503}, nil },
		"with a key": func(ctx context.Context) (idem.Response, error) {
			_, err := idem.DownstreamKey(ctx, "x")
			return idem.Response{Status: 201}, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Millisecond }})
			var left context.Context
			func() {
				defer func() { _ = recover() }()
				_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
					left = ctx
					return end(ctx)
				})
			}()
			b.wantEnded(left)
			b.wantEnded(context.WithoutCancel(left))
		})
	}
}

func TestNothingIsSentAfterAFailedOpenHandlerHasReturned(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.FailOpen = true }})
	b.faults.FailBefore("Get", idemtest.Every, nil)
	var left context.Context
	if _, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		left = ctx
		return idem.Response{Status: 201}, nil
	}); err != nil {
		t.Fatal(err)
	}
	b.wantEnded(left)
}

// A resolver that ignores its time-out is left running, and the attempt goes on
// without it.
func TestNothingIsSentByAResolverThatWasLeftRunning(t *testing.T) {
	asked, release := make(chan context.Context, 1), make(chan struct{})
	b := setup(t, parts{policy: func(p *idem.Policy) {
		p.ResolverTimeout = time.Millisecond
		p.InDoubt = idem.AskResolver(func(ctx context.Context, _ idem.Interrupted) (idem.Resolution, error) {
			asked <- ctx
			<-release
			return idem.StillUnknown(), nil
		})
	}})
	defer close(release)
	b.wantAnswer("k", "a", 500)
	b.wantEnded(<-asked)
}

// The gate is closed past the deadline for contexts that do not end with the
// handler's own, as Gin's.
func TestCheckOwnerKnowsTheDeadlineOfEveryContext(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Millisecond }})
	_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		<-ctx.Done()
		for name, c := range map[string]context.Context{"its own": ctx, "without its cancellation": context.WithoutCancel(ctx)} {
			if _, err := idem.CheckOwner(c); !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("CheckOwner() with %s = %v, want %v", name, err, context.DeadlineExceeded)
			}
		}
		return idem.Response{Status: 503}, nil
	})
}
