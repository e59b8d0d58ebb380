package idem_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

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
	if res, err := b.doWith("k", "a", answers(500)); err != nil || res.Response.Status != 500 {
		t.Fatalf("Do() = %v, %v", res, err)
	}
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
