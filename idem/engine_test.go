package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestRepeatGetsTheFirstOutcome(t *testing.T) {
	b := setup(t, parts{})
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, false)
	for range 3 {
		res, err = b.do("k", "a")
		b.wantPaid(res, err, 1, true)
	}
	b.wantRuns(1)
	b.wantState("k", driver.StateCompleted)
}

func TestOtherKeysAndScopesAreOtherOperations(t *testing.T) {
	b := setup(t, parts{})
	_, _ = b.do("k", "a")
	res, err := b.do("k2", "a")
	b.wantPaid(res, err, 2, false)
	op := b.operation("k", "a")
	op.Scope = "m2"
	res, err = b.engine.Do(context.Background(), op, b.pay)
	b.wantPaid(res, err, 3, false)
}

func TestAnotherRequestUnderTheKeyIsRefused(t *testing.T) {
	b := setup(t, parts{})
	_, _ = b.do("k", "a")
	_, err := b.do("k", "b")
	b.wantRefused(err, idem.CodeKeyReused)
	// The same request over another transport is another one.
	op := b.operation("k", "a")
	op.Transport, op.Fingerprint = idem.TransportGRPC, fingerprintOf("grpc", "a")
	_, err = b.engine.Do(context.Background(), op, b.pay)
	b.wantRefused(err, idem.CodeKeyReused)
	b.wantRuns(1)
}

func TestIssuedTokenIsConsumedOnce(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	token, err := b.engine.IssueToken(context.Background(), "m1", 0)
	if err != nil || token.ExpiresAt.IsZero() {
		t.Fatalf("IssueToken() = %v, %v", token, err)
	}
	key := string(token.Value)
	b.wantState(key, driver.StateIssued)
	res, err := b.do(key, "a")
	b.wantPaid(res, err, 1, false)
	res, err = b.do(key, "a")
	b.wantPaid(res, err, 1, true)
	_, err = b.do(key, "b")
	b.wantRefused(err, idem.CodeKeyReused)
}

func TestKindsOfKeyDoNotMix(t *testing.T) {
	b := setup(t, parts{})
	token, err := b.engine.IssueToken(context.Background(), "m1", 0)
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.do(string(token.Value), "a")
	b.wantRefused(err, idem.CodeKeyReused)
	b.wantState(string(token.Value), driver.StateIssued)

	_, _ = b.do("client", "a")
	b.policy.IssuedTokens = true
	_, err = b.do("client", "a")
	b.wantRefused(err, idem.CodeTokenUnknown)
	_, err = b.do("made-up", "a")
	b.wantRefused(err, idem.CodeTokenUnknown)
	op := b.operation(string(token.Value), "a")
	op.Scope = "m2"
	_, err = b.engine.Do(context.Background(), op, b.pay)
	b.wantRefused(err, idem.CodeTokenUnknown)
	b.wantRuns(1)
}

func TestReleasedTokenIsIssuedAgain(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	token, _ := b.engine.IssueToken(context.Background(), "m1", time.Hour)
	key := string(token.Value)
	if res, err := b.doWith(key, "a", answers(429)); err != nil || res.Response.Status != 429 {
		t.Fatalf("Do() = %v, %v, want 429", res, err)
	}
	if got := b.wantState(key, driver.StateIssued); !got.ExpiresAt.Equal(token.ExpiresAt) {
		t.Errorf("expiry = %v, want the old one, %v", got.ExpiresAt, token.ExpiresAt)
	}
	res, err := b.do(key, "b")
	b.wantPaid(res, err, 1, false)
}

// TestOutcomes is the table of design.md, section 6.
func TestOutcomes(t *testing.T) {
	http := func(want driver.State, statuses ...int) map[int]driver.State {
		m := map[int]driver.State{}
		for _, s := range statuses {
			m[s] = want
		}
		return m
	}
	for _, tt := range []struct {
		transport idem.Transport
		gated     bool
		want      map[int]driver.State
	}{
		{idem.TransportHTTP, false, http(driver.StateCompleted, 200, 201, 204, 302, 400, 402, 404, 409, 410, 422, 451)},
		{idem.TransportHTTP, true, http(driver.StateCompleted, 200, 400, 402, 404, 422)},
		{idem.TransportHTTP, false, http(driver.StateReleased, 401, 403, 425, 429)},
		{idem.TransportHTTP, true, http(driver.StateUnknown, 401, 403, 425, 429)},
		{idem.TransportHTTP, false, http(driver.StateUnknown, 408, 499, 500, 502, 503, 504, 599, 0, 101)},
		{idem.TransportGRPC, false, http(driver.StateCompleted, 0, 3, 5, 6, 9, 11, 12)},
		{idem.TransportGRPC, false, http(driver.StateReleased, 7, 8, 16)},
		{idem.TransportGRPC, true, http(driver.StateUnknown, 7, 8, 16)},
		{idem.TransportGRPC, false, http(driver.StateUnknown, 1, 2, 4, 10, 13, 14, 15, 99)},
		{idem.TransportDirect, false, http(driver.StateCompleted, 0, 500)},
	} {
		for status, want := range tt.want {
			t.Run(fmt.Sprintf("transport %d status %d gated %t", tt.transport, status, tt.gated), func(t *testing.T) {
				b := setup(t, parts{})
				op := b.operation("k", "a")
				op.Transport = tt.transport
				res, err := b.engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
					if tt.gated {
						derived(ctx, t, "capture")
					}
					return idem.Response{Status: status}, nil
				})
				if want == driver.StateUnknown && !decidesNothing(tt.transport, status) {
					b.wantDoubt(err, "k", 0)
				} else if err != nil || res.Response.Status != status || res.Replayed {
					t.Fatalf("Do() = %v, %v, want its own answer", res, err)
				}
				b.wantState("k", want)
				if want == driver.StateUnknown { // no answer of the past, and nothing runs
					_, err = b.engine.Do(context.Background(), op, b.pay)
					b.wantDoubt(err, "k", 0)
					b.wantRuns(0)
				}
			})
		}
	}
}

func TestReleasedKeyRunsAfreshWhateverTheBody(t *testing.T) {
	b := setup(t, parts{})
	_, _ = b.doWith("k", "a", answers(429))
	res, err := b.do("k", "b")
	b.wantPaid(res, err, 1, false)
	if res.Attempt != 2 {
		t.Errorf("attempt = %d, want 2", res.Attempt)
	}
}

func TestNoEffectReleases(t *testing.T) {
	b := setup(t, parts{})
	_, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		idem.NoEffect(ctx)
		return idem.Response{Status: 500}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, false)
}

// Whoever runs a service learns which outcomes cannot be replayed.
func TestEventOfAnOutcomeWithoutItsResponse(t *testing.T) {
	for _, omitted := range []bool{false, true} {
		var kept error
		engine, err := idem.New(memorylock.New(), memorystore.New(), idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
			if ev.Type == telemetry.EventCompleted {
				kept = ev.Err
			}
		}))
		if err != nil {
			t.Fatal(err)
		}
		_, err = engine.Do(t.Context(), idem.Operation{Transport: idem.TransportHTTP, Key: "k1", Policy: &idem.Policy{AllowGlobalKeys: true}, Fingerprint: idem.FingerprintOf("pay")},
			func(context.Context) (idem.Response, error) {
				return idem.Response{Status: 201, Omitted: omitted}, nil
			})
		if closed := engine.Close(context.Background()); err != nil || closed != nil || (kept != nil) != omitted {
			t.Errorf("omitted %t: Do() = %v, Close() = %v, and the event has %v", omitted, err, closed, kept)
		}
	}
}

// A declaration that nothing happened counts if nothing that came after it, or beside it, says
// otherwise.
func TestDeclarationsOfNoEffect(t *testing.T) {
	t.Parallel()
	gate := func(ctx context.Context) { _, _ = idem.DownstreamKey(ctx, "bank") }
	asks := func(ctx context.Context) { _, _ = idem.FromContext(ctx) }
	var e *idem.Engine
	misuse := func(ctx context.Context) { e.ReportMisused(ctx, errors.New("a time-out answered")) }
	for name, tt := range map[string]struct {
		steps []func(context.Context)
		err   error
		want  driver.State
	}{
		"no effect":                                 {[]func(context.Context){idem.NoEffect}, nil, driver.StateReleased},
		"no effect after the gate":                  {[]func(context.Context){gate, idem.NoEffect}, nil, driver.StateReleased},
		"no effect before the gate":                 {[]func(context.Context){idem.NoEffect, gate}, nil, driver.StateCompleted}, // as any 404
		"no effect, and middleware answers":         {[]func(context.Context){idem.NoEffect, misuse}, nil, driver.StateUnknown},
		"middleware answers, and no effect":         {[]func(context.Context){misuse, idem.NoEffect}, nil, driver.StateUnknown},
		"not admitted":                              {[]func(context.Context){idem.NotAdmitted}, nil, driver.StateReleased},
		"not admitted after the gate":               {[]func(context.Context){gate, idem.NotAdmitted}, nil, driver.StateUnknown},
		"not admitted with the fence known":         {[]func(context.Context){asks, idem.NotAdmitted}, nil, driver.StateUnknown},
		"not admitted with an error":                {[]func(context.Context){idem.NotAdmitted}, errors.New("relayed"), driver.StateUnknown},
		"not admitted, and middleware answers":      {[]func(context.Context){idem.NotAdmitted, misuse}, nil, driver.StateUnknown},
		"not admitted, after the gate, no effect":   {[]func(context.Context){gate, idem.NotAdmitted, idem.NoEffect}, nil, driver.StateReleased},
		"not admitted after the end of its context": {[]func(context.Context){func(ctx context.Context) { <-ctx.Done() }, idem.NotAdmitted}, nil, driver.StateUnknown},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = 20 * time.Millisecond }})
			e = b.engine
			_, _ = b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
				for _, step := range tt.steps {
					step(ctx)
				}
				return idem.Response{Status: 404}, tt.err
			})
			b.wantState("k", tt.want)
		})
	}
}

// An immediate retry takes the lock, so it has to be free before the answer. A completed key
// is answered from its record.
func TestReleaseBeforeTheAnswer(t *testing.T) {
	for name, tt := range map[string]struct {
		h       idem.Handler
		awaited int
	}{
		"completed": {answers(201), 0},
		"refused":   {answers(429), 1},
		"in doubt":  {answers(500), 1},
	} {
		t.Run(name, func(t *testing.T) {
			b := setup(t, parts{})
			if _, err := b.doWith("k", "a", tt.h); err != nil {
				t.Fatal(err)
			}
			if n := b.locks.Calls("Lease.Release"); n != tt.awaited {
				t.Errorf("the answer waited for %d releases, want %d", n, tt.awaited)
			}
		})
	}
}

func TestHandlerErrorIsInDoubt(t *testing.T) {
	b := setup(t, parts{})
	boom := errors.New("boom")
	_, err := b.doWith("k", "a", func(context.Context) (idem.Response, error) { return idem.Response{}, boom })
	if !errors.Is(err, boom) {
		t.Fatalf("Do() = %v, want %v", err, boom)
	}
	_, err = b.do("k", "a")
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	b.wantRuns(0)
}

func TestPanicIsInDoubtAndGoesOn(t *testing.T) {
	b := setup(t, parts{})
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("recovered %v, want the handler's own panic", p)
			}
		}()
		_, _ = b.doWith("k", "a", func(context.Context) (idem.Response, error) { panic("boom") })
	}()
	b.wantState("k", driver.StateUnknown) // at once, for the operators
	_, err := b.do("k", "a")
	b.wantDoubt(err, "k", 0)
	b.wantRuns(0)
}

func TestOmittedBodyCannotBeReplayed(t *testing.T) {
	b := setup(t, parts{})
	_, err := b.doWith("k", "a", func(context.Context) (idem.Response, error) {
		return idem.Response{Status: 200, Omitted: true}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	_, err = b.do("k", "a")
	b.wantRefused(err, idem.CodeResultUnavailable)
}

func TestDuplicateOfARunningRequest(t *testing.T) {
	t.Run("is refused as in progress", func(t *testing.T) {
		b := setup(t, parts{})
		finish := b.started("k", "a", b.pay)
		_, err := b.do("k", "a")
		b.wantRefused(err, idem.CodeInProgress)
		res, err := finish()
		b.wantPaid(res, err, 1, false)
	})
	t.Run("with another request is a mismatch", func(t *testing.T) {
		b := setup(t, parts{})
		finish := b.started("k", "a", b.pay)
		_, err := b.do("k", "b")
		b.wantRefused(err, idem.CodeKeyReused)
		_, _ = finish()
	})
	t.Run("waits and gets its outcome", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
		finish := b.started("k", "a", b.pay)
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				res, err := b.do("k", "a")
				b.wantPaid(res, err, 1, true)
			})
		}
		b.eventually("all wait", func() bool { return b.saw(telemetry.EventJoined) == 8 })
		_, _ = finish()
		wg.Wait()
		b.wantRuns(1)
	})
	t.Run("waits and runs where the first had no effect", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
		finish := b.started("k", "a", answers(429))
		done := make(chan struct{})
		go func() {
			defer close(done)
			res, err := b.do("k", "a")
			b.wantPaid(res, err, 1, false)
		}()
		b.eventually("it waits", func() bool { return b.saw(telemetry.EventJoined) == 1 })
		_, _ = finish()
		<-done
	})
	t.Run("gives up when its patience ends", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = time.Millisecond }})
		finish := b.started("k", "a", b.pay)
		_, err := b.do("k", "a")
		b.wantRefused(err, idem.CodeInProgress)
		_, _ = finish()
	})
}

func TestDuplicateElsewhere(t *testing.T) {
	hold := func(b *bundle) driver.Lease {
		id := idem.NewKeyID("m1", "k")
		lease, err := b.locker.TryAcquire(context.Background(), driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
		if err != nil {
			b.Fatal(err)
		}
		return lease
	}
	t.Run("is refused as in progress", func(t *testing.T) {
		b := setup(t, parts{})
		lease := hold(b)
		_, err := b.do("k", "a")
		b.wantRefused(err, idem.CodeInProgress)
		lease.ReleaseInBackground()
		res, err := b.do("k", "a")
		b.wantPaid(res, err, 1, false)
	})
	t.Run("mismatch beats in-progress", func(t *testing.T) {
		b := setup(t, parts{})
		lease := hold(b)
		defer lease.ReleaseInBackground()
		fp, _ := fingerprintOf("http", "other")(1)
		_, err := b.store.Begin(context.Background(), idem.NewKeyID("m1", "k"),
			driver.BeginRequest{Fence: lease.Fence(), Nonce: driver.NewNonce(), Fingerprint: fp})
		if err != nil {
			t.Fatal(err)
		}
		_, err = b.do("k", "a")
		b.wantRefused(err, idem.CodeKeyReused)
	})
	t.Run("mismatch with one that begins meanwhile", func(t *testing.T) {
		b := setup(t, parts{})
		slow := b.locks.Slow("TryAcquire", 1)
		done := make(chan error)
		go func() {
			_, err := b.do("k", "a")
			done <- err
		}()
		<-slow.Arrived() // it has read that there is no record
		lease := hold(b)
		defer lease.ReleaseInBackground()
		b.begin(idem.NewKeyID("m1", "k"), "other", lease.Fence())
		slow.Release()
		b.wantRefused(<-done, idem.CodeKeyReused)
	})
	t.Run("waits on the lock and reads the outcome", func(t *testing.T) {
		b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
		lease := hold(b)
		id := idem.NewKeyID("m1", "k")
		fp, _ := fingerprintOf("http", "a")(1)
		ctx := context.Background()
		begun, err := b.store.Begin(ctx, id, driver.BeginRequest{Fence: lease.Fence(), Nonce: driver.NewNonce(), Fingerprint: fp})
		if err != nil {
			t.Fatal(err)
		}
		done := make(chan struct{})
		go func() {
			defer close(done)
			res, err := b.do("k", "a")
			b.wantPaid(res, err, 77, true)
		}()
		b.eventually("it waits", func() bool { return b.saw(telemetry.EventWaited) == 1 })
		resp := created(77)
		if _, err := b.store.Settle(ctx, id, driver.Settlement{Attempt: begun.Record.Attempt, ID: begun.Record.Attempt.Nonce,
			State: driver.StateCompleted, Response: (*driver.Response)(&resp), ResultTTL: time.Hour, KeyTTL: time.Hour}); err != nil {
			t.Fatal(err)
		}
		lease.ReleaseInBackground()
		<-done
		b.wantRuns(0)
	})
}

func TestManyDuplicatesExecuteOnce(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	var wg sync.WaitGroup
	for i := range 256 {
		wg.Go(func() {
			key := fmt.Sprintf("k%d", i%4)
			res, err := b.do(key, "a")
			if err != nil || res.Response.Status != 201 {
				t.Errorf("Do(%q) = %v, %v", key, res, err)
			}
		})
	}
	wg.Wait()
	b.wantRuns(4)
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
	res, err := b.do("k", "a")
	b.wantPaid(res, err, 1, true)
	_, err = b.engine.Do(ctx, b.operation("k3", "a"), b.pay)
	b.wantRefused(err, idem.CodeUnavailable)
}

func TestDeadlineOnlyCancels(t *testing.T) {
	b := setup(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = time.Millisecond }})
	res, err := b.doWith("k", "a", func(ctx context.Context) (idem.Response, error) {
		<-ctx.Done()
		if !errors.Is(ctx.Err(), context.DeadlineExceeded) {
			t.Errorf("handler's context ended with %v", ctx.Err())
		}
		// The lock is still held, and the outcome open.
		_, err := b.do("k", "a")
		b.wantRefused(err, idem.CodeInProgress)
		return b.pay(ctx)
	})
	b.wantPaid(res, err, 1, false)
	b.wantState("k", driver.StateCompleted)
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

func TestExecutionContext(t *testing.T) {
	b := setup(t, parts{})
	var first idem.Execution
	var down, other string
	look := func(ctx context.Context) (idem.Response, error) {
		x, ok := idem.FromContext(ctx)
		if !ok || x.Fence.Domain == "" || x.Fence.Token == 0 || x.OperationID != x.KeyID.OperationID() {
			t.Errorf("FromContext() = %+v, %t", x, ok)
		}
		if left, err := idem.CheckOwner(ctx); err != nil || left <= 0 {
			t.Errorf("CheckOwner() = %v, %v", left, err)
		}
		first, down, other = x, derived(ctx, t, "capture"), derived(ctx, t, "refund")
		idem.NoEffect(ctx)
		return idem.Response{Status: 500}, nil
	}
	_, _ = b.doWith("k", "a", look)
	before, key := first, down
	_, _ = b.doWith("k", "a", look)
	if first.OperationID != before.OperationID || down != key {
		t.Errorf("operation %q and key %q changed to %q and %q between attempts", before.OperationID, key, first.OperationID, down)
	}
	if first.Attempt != 2 || !before.Fence.Before(first.Fence) {
		t.Errorf("second attempt = %+v after %+v", first, before)
	}
	if other == down || len(down) != 36 {
		t.Errorf("DownstreamKey = %q and %q, want two different UUIDs", down, other)
	}
	if _, err := idem.CheckOwner(context.Background()); !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("CheckOwner outside = %v, want %v", err, idem.ErrNoExecution)
	}
	if key, err := idem.DownstreamKey(context.Background(), "capture"); key != "" || !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("DownstreamKey outside = %q, %v, want %v", key, err, idem.ErrNoExecution)
	}
}

func TestNewRefusesALockThatOthersCannotSee(t *testing.T) {
	_, err := idem.New(memorylock.New(), sharedStore{})
	if err == nil {
		t.Error("New(process lock, shared store) = nil, want an error")
	}
}

func TestNewRefusesSettingsThatCannotWork(t *testing.T) {
	for name, opt := range map[string]idem.Option{
		"store time-out":  idem.WithStoreTimeout(0),
		"lock time-out":   idem.WithLockTimeout(-1),
		"settle time-out": idem.WithSettleTimeout(0),
		"long running":    idem.WithLongRunning(-1),
		"retries":         idem.WithConflictRetries(-1),
		"limit":           idem.WithMaxOpenExecutionsPerScope(-1),
	} {
		if _, err := idem.New(memorylock.New(), memorystore.New(), opt); err == nil {
			t.Errorf("%s: New() = nil, want an error", name)
		}
		if _, err := idem.NewJoined(newBook(), opt); err == nil {
			t.Errorf("%s: NewJoined() = nil, want an error", name)
		}
	}
	if _, err := idem.NewJoined(nil); err == nil {
		t.Error("NewJoined(nil) = nil, want an error")
	}
}

// A lock that other instances share over records that they cannot see would let each of them run a
// key, so it takes a promise that there is one instance.
func TestSharedLockOverPrivateRecordsNeedsASingleInstance(t *testing.T) {
	if _, err := idem.New(sharedLocker{memorylock.New()}, memorystore.New()); err == nil || !strings.Contains(err.Error(), "WithSingleInstance") {
		t.Errorf("New() = %v, want an error that names WithSingleInstance", err)
	}
	if _, err := idem.New(sharedLocker{memorylock.New()}, memorystore.New(), idem.WithSingleInstance()); err != nil {
		t.Errorf("New(WithSingleInstance) = %v", err)
	}
	if _, err := idem.New(memorylock.New(), sharedStore{}, idem.WithSingleInstance()); err == nil {
		t.Error("New() = nil for a private lock over shared records, want an error")
	}
}

type sharedLocker struct{ driver.Locker }

func (sharedLocker) Visibility() driver.Visibility { return driver.VisibilityShared }

type sharedStore struct{ driver.Store }

func (sharedStore) Visibility() driver.Visibility { return driver.VisibilityShared }

// TestEachAttemptHasANonceOfItsOwn, by which a store tells a request that was sent twice from
// two requests. The answer names its key.
func TestEachAttemptHasANonceOfItsOwn(t *testing.T) {
	b := setup(t, parts{})
	seen := map[driver.Nonce]bool{{}: true}
	for _, key := range []string{"k1", "k2", "k3"} {
		id := idem.NewKeyID("m1", idem.Key(key))
		res, err := b.do(key, "a")
		if err != nil || res.KeyID != id {
			t.Errorf("Do() = %+v, %v, want key %v", res, err, id)
		}
		rec, err := b.store.Get(t.Context(), id)
		if err != nil || seen[rec.Attempt.Nonce] {
			t.Errorf("Get() = %+v, %v, want a nonce that is new", rec.Attempt, err)
		}
		seen[rec.Attempt.Nonce] = true
	}
}

// TestPingTellsWhichPartFails: the error names the lock service, the store, or both.
func TestPingTellsWhichPartFails(t *testing.T) {
	b := setup(t, parts{})
	if err := b.engine.Ping(t.Context()); err != nil {
		t.Errorf("Ping() = %v", err)
	}
	down := errors.New("down")
	b.faults.FailBefore("Ping", idemtest.Every, down)
	if err := b.engine.Ping(t.Context()); !errors.Is(err, down) || strings.Contains(err.Error(), "lock service") {
		t.Errorf("Ping() = %v, want the store's error alone", err)
	}
	b.locks.FailBefore("Ping", idemtest.Every, driver.ErrUnavailable)
	if err := b.engine.Ping(t.Context()); !errors.Is(err, down) || !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "lock service") {
		t.Errorf("Ping() = %v, want both errors", err)
	}
}

// TestTokenThatCannotBeIssued: the client is told why, in a code.
func TestTokenThatCannotBeIssued(t *testing.T) {
	b := setup(t, parts{})
	_, err := b.engine.IssueToken(t.Context(), "m1", -1)
	b.wantRefused(err, idem.CodeInternal)
	b.faults.FailBefore("Issue", 1, nil)
	_, err = b.engine.IssueToken(t.Context(), "m1", time.Minute)
	b.wantRefused(err, idem.CodeUnavailable)
	if err := b.engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = b.engine.IssueToken(t.Context(), "m1", time.Minute)
	b.wantRefused(err, idem.CodeUnavailable)
}
