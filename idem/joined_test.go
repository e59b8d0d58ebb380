package idem_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

func TestJoinedSuccessCommitsTheRecordWithTheWrites(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	b.wantPayment("k1", "100", 1, false)
	b.wantState("k1", driver.StateCompleted)
	b.wantPayment("k1", "100", 1, true)
	b.wantRefusal("k1", "900", idem.CodeKeyReused)
	b.wantLines("payment 1")
}

// TestJoinedEnd is the table of the end of a transaction.
func TestJoinedEnd(t *testing.T) {
	t.Parallel()
	boom := errors.New("boom")
	for name, tt := range map[string]struct {
		transport idem.Transport
		status    int
		err       error
		before    func(ctx context.Context)
		timeout   time.Duration
		kept      bool // the writes
		state     driver.State
	}{
		"success commits":                          {transport: idem.TransportHTTP, status: 201, kept: true, state: driver.StateCompleted},
		"a redirect commits":                       {transport: idem.TransportHTTP, status: 303, kept: true, state: driver.StateCompleted},
		"no funds rolls back, and is stored":       {transport: idem.TransportHTTP, status: 402, state: driver.StateCompleted},
		"400 rolls back, and is stored":            {transport: idem.TransportHTTP, status: 400, state: driver.StateCompleted},
		"402 after the deadline rolls back":        {transport: idem.TransportHTTP, status: 402, before: pastDeadline(t), timeout: time.Millisecond, state: driver.StateNone},
		"201 after the deadline commits":           {transport: idem.TransportHTTP, status: 201, before: pastDeadline(t), timeout: time.Millisecond, kept: true, state: driver.StateCompleted},
		"KeepWrites commits a refusal":             {transport: idem.TransportHTTP, status: 402, before: idem.KeepWrites, kept: true, state: driver.StateCompleted},
		"429 rolls back":                           {transport: idem.TransportHTTP, status: 429, state: driver.StateNone},
		"429 rolls back in spite of KeepWrites":    {transport: idem.TransportHTTP, status: 429, before: idem.KeepWrites, state: driver.StateNone},
		"408 rolls back":                           {transport: idem.TransportHTTP, status: 408, state: driver.StateNone},
		"500 rolls back":                           {transport: idem.TransportHTTP, status: 500, state: driver.StateNone},
		"500 rolls back in spite of KeepWrites":    {transport: idem.TransportHTTP, status: 500, before: idem.KeepWrites, state: driver.StateNone},
		"NoEffect rolls back":                      {transport: idem.TransportHTTP, status: 200, before: idem.NoEffect, state: driver.StateNone},
		"an error rolls back":                      {transport: idem.TransportHTTP, status: 200, err: boom, state: driver.StateNone},
		"gRPC OK commits":                          {transport: idem.TransportGRPC, status: 0, kept: true, state: driver.StateCompleted},
		"gRPC NOT_FOUND rolls back, and is stored": {transport: idem.TransportGRPC, status: 5, state: driver.StateCompleted},
		"gRPC ABORTED rolls back":                  {transport: idem.TransportGRPC, status: 10, state: driver.StateNone},
		"a nil error of Do commits":                {transport: idem.TransportDirect, kept: true, state: driver.StateCompleted},
		"an error of Do rolls back":                {transport: idem.TransportDirect, err: boom, state: driver.StateNone},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout = tt.timeout }})
			op := b.operation("k1", "100")
			op.Transport = tt.transport
			handler := func(ctx context.Context) (idem.Response, error) {
				if tt.before != nil {
					tt.before(ctx)
				}
				resp, _ := b.paying(tt.status)(ctx)
				return resp, tt.err
			}
			res, err := b.engine.Do(context.Background(), op, handler)
			switch {
			case tt.timeout > 0 && tt.status == 402: // the client would take it for final, and a repeat runs
				b.wantRefused(err, idem.CodeUnavailable)
			case tt.err != nil && tt.transport == idem.TransportHTTP:
				b.wantDoubt(err, "k1", time.Second)
			case !errors.Is(err, tt.err) || err == nil && (res.Response.Status != tt.status || res.Replayed):
				t.Errorf("Do() = %+v, %v, want %d, %v", res, err, tt.status, tt.err)
			}
			var lines []string
			if tt.kept {
				lines = []string{"payment 1"}
			}
			b.wantLines(lines...)
			b.wantState("k1", tt.state)
			again, err := b.engine.Do(context.Background(), op, handler)
			if stored := tt.state == driver.StateCompleted; again.Replayed != stored || !stored && b.runs.Load() != 2 {
				t.Errorf("the repeat = %+v, %v after %d runs", again, err, b.runs.Load())
			}
		})
	}
}

// pastDeadline waits for the deadline of a handler. The gate is shut then.
func pastDeadline(t *testing.T) func(ctx context.Context) {
	return func(ctx context.Context) {
		<-ctx.Done()
		if _, err := idem.CheckOwner(ctx); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("CheckOwner() after the deadline = %v, want %v", err, context.DeadlineExceeded)
		}
	}
}

// panics sends a request whose handler does something and then panics.
func (b *joinedBundle) panics(op idem.Operation, before func(ctx context.Context)) {
	b.Helper()
	defer func() {
		if p := recover(); p != "boom" {
			b.Errorf("Do() panics with %v, want the panic of the handler", p)
		}
	}()
	_, _ = b.engine.Do(context.Background(), op, func(ctx context.Context) (idem.Response, error) {
		before(ctx)
		panic("boom")
	})
}

func TestJoinedPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	for _, transport := range []idem.Transport{idem.TransportHTTP, idem.TransportGRPC, idem.TransportDirect} {
		b := setupJoined(t, parts{})
		op := b.operation("k1", "100")
		op.Transport = transport
		var left context.Context
		b.ledger.onRollback = func() {
			if _, err := idem.CheckOwner(left); !errors.Is(err, idem.ErrExecutionEnded) {
				t.Errorf("CheckOwner() during the rollback = %v, want %v", err, idem.ErrExecutionEnded)
			}
		}
		b.panics(op, func(ctx context.Context) {
			left = ctx
			b.write(ctx, "lost")
		})
		b.wantState("k1", driver.StateNone)
		res, err := b.doWith("k1", "900", b.paying(201)) // another request may have the free key
		b.wantPaid(res, err, 1, false)
		b.wantLines("payment 1")
	}
}

func TestJoinedKeyIsPendingWhileItsTransactionRuns(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	other, err := idem.NewJoined(b.ledger)
	if err != nil {
		t.Fatal(err)
	}
	finish := b.started("k1", "100", b.paying(201))
	if s := b.wantState("k1", driver.StatePending); s.Attempt != 1 {
		t.Errorf("Status() has attempt %d, want 1", s.Attempt)
	}
	b.wantRefusalBy(other, b.operation("k1", "100"), idem.CodeInProgress)
	res, err := finish()
	b.wantPaid(res, err, 1, false)
	res, err = other.Do(context.Background(), b.operation("k1", "100"), b.pay)
	b.wantPaid(res, err, 1, true)
}

func TestJoinedDuplicateWaitsForTheTransactionElsewhere(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = patience }})
	var waits sync.WaitGroup
	waiting := make(chan struct{})
	other, err := idem.NewJoined(b.ledger, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		if ev.Type == telemetry.EventWaited {
			close(waiting)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	finish := b.started("k1", "100", b.paying(201))
	waits.Go(func() {
		res, err := other.Do(context.Background(), b.operation("k1", "100"), b.pay)
		b.wantPaid(res, err, 1, true)
	})
	<-waiting
	if _, err := finish(); err != nil {
		t.Error(err)
	}
	waits.Wait()
}

// A store that met one conflict after another says that the key is held. The key looks free then.
func TestJoinedDuplicatePausesBeforeItTriesAgain(t *testing.T) {
	t.Parallel()
	const wait, pause = 100 * time.Millisecond, 5 * time.Millisecond
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.DuplicateWait = wait }})
	var tries atomic.Int64
	b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) {
		tries.Add(1)
		return true, driver.JoinedBegin{Held: true}, nil
	}
	_, err := b.do("k1", "100")
	b.wantRefused(err, idem.CodeInProgress)
	if n := tries.Load(); n > int64(wait/pause)+1 {
		t.Errorf("tried %d times in %v, want a pause of %v before each", n, wait, pause)
	}
}

func TestJoinedSuccessWithoutTheTransactionIsUnknown(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	_, err := b.do("k1", "100")
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	if !errors.Is(err, idem.ErrNotTaken) || b.saw(telemetry.EventMisused) != 1 {
		t.Errorf("Do() = %v with %d events, want ErrNotTaken and one event", err, b.saw(telemetry.EventMisused))
	}
	b.wantState("k1", driver.StateUnknown)
	_, err = b.doWith("k1", "100", func(context.Context) (idem.Response, error) {
		t.Error("a retry runs the handler, which may have written without its transaction")
		return idem.Response{}, nil
	})
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	res, err := b.doWith("k2", "100", answers(404)) // a refusal needs no transaction
	if err != nil || res.Response.Status != 404 {
		t.Errorf("Do() = %+v, %v, want 404", res, err)
	}
	b.wantState("k2", driver.StateCompleted)
	res, err = b.doWith("k3", "100", func(ctx context.Context) (idem.Response, error) {
		idem.KeepWrites(ctx) // and there are none
		return idem.Response{Status: 402}, nil
	})
	if err != nil || res.Response.Status != 402 {
		t.Errorf("Do() = %+v, %v, want 402", res, err)
	}
	b.wantState("k3", driver.StateCompleted)
}

func TestJoinedSuccessOverAFailedStatementIsUnavailable(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		b.write(ctx, "lost").failed = errors.New("constraint")
		return created(1), nil
	})
	b.wantRefused(err, idem.CodeUnavailable)
	if !errors.Is(err, driver.ErrSwallowed) || b.saw(telemetry.EventMisused) != 1 {
		t.Errorf("Do() = %v with %d events, want ErrSwallowed and one event", err, b.saw(telemetry.EventMisused))
	}
	b.wantLines()
	b.wantState("k1", driver.StateNone)
}

// pays sends a request to another instance.
func (b *joinedBundle) pays(key, body string) {
	b.Helper()
	other, err := idem.NewJoined(b.ledger)
	if err == nil {
		_, err = other.Do(context.Background(), b.operation(key, body), b.paying(201))
	}
	if err != nil {
		b.Errorf("Do() of another instance = %v", err)
	}
}

// A different request is told of the running one in this process, where no instance can read the
// record yet. Until the first one has begun, the record may be for either.
func TestJoinedOtherRequestUnderARunningKey(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	finish := b.started("k1", "100", b.paying(201))
	b.wantRefusal("k1", "900", idem.CodeKeyReused)
	res, err := finish()
	b.wantPaid(res, err, 1, false)

	arrived, release := make(chan struct{}), make(chan struct{})
	var calls atomic.Int64
	b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) {
		if calls.Add(1) == 1 {
			close(arrived)
			<-release
		}
		return false, driver.JoinedBegin{}, nil
	}
	done := make(chan error, 1)
	go func() {
		_, err := b.doWith("k2", "100", b.paying(201))
		done <- err
	}()
	<-arrived
	b.wantPayment("k2", "900", 2, false)
	close(release)
	b.wantRefused(<-done, idem.CodeKeyReused)
}

func TestJoinedFunctionsOutsideOfAJoinedExecution(t *testing.T) {
	t.Parallel()
	call := func(ctx context.Context) {
		idem.NoEffect(ctx)
		idem.KeepWrites(ctx)
		idem.ReportFailure(ctx, errDeadlock)
	}
	call(t.Context())
	b := setup(t, parts{})
	res, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		idem.KeepWrites(ctx)
		idem.ReportFailure(ctx, errDeadlock)
		return b.pay(ctx)
	})
	b.wantPaid(res, err, 1, false)
}

func TestJoinedDownstreamKeyNeedsADeclaration(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		key, err := idem.DownstreamKey(ctx, "bank")
		if key != "" || !errors.Is(err, idem.ErrUndeclared) {
			t.Errorf("DownstreamKey() = %q, %v, want ErrUndeclared", key, err)
		}
		return idem.Response{}, err
	})
	if !errors.Is(err, idem.ErrUndeclared) {
		t.Errorf("Do() = %v, want ErrUndeclared", err)
	}
}

// TestJoinedBindingSurvivesARollback is a bank that was called for 100, and a retry for 900.
func TestJoinedBindingSurvivesARollback(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
	var keys []string
	fail := func(ctx context.Context) (idem.Response, error) {
		keys = append(keys, derived(ctx, t, "bank"))
		return idem.Response{Status: 500}, nil
	}
	if res, err := b.doWith("k1", "100", fail); err != nil || res.Response.Status != 500 {
		t.Fatalf("Do() = %+v, %v, want 500", res, err)
	}
	b.wantState("k1", driver.StateNone)
	b.wantRefusal("k1", "900", idem.CodeKeyReused)
	b.wantRuns(0)
	if _, err := b.doWith("k1", "100", fail); err != nil {
		t.Fatal(err)
	}
	if len(keys) != 2 || keys[0] != keys[1] {
		t.Errorf("downstream keys = %q, want two that are the same", keys)
	}
	b.ledger.bindings[idem.NewKeyID("m1", "k1")] = driver.Fingerprint{Version: 7, Sum: [32]byte{1}}
	_, err := b.doWith("k1", "100", b.paying(201))
	b.wantRefused(err, idem.CodeUnavailable) // an instance that knows version 7 can compare
}

func TestJoinedTransactionBelongsToItsExecution(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	var kept context.Context
	_, err := b.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		kept = ctx
		if x, _ := idem.FromContext(ctx); x.Fence != (driver.Fence{}) || x.Attempt != 1 {
			t.Errorf("FromContext() = %+v, want attempt 1 without a fence", x)
		}
		if left, err := idem.CheckOwner(ctx); err != nil || left != time.Minute {
			t.Errorf("CheckOwner() = %v, %v, want a minute", left, err)
		}
		return b.paying(201)(ctx)
	})
	if err != nil {
		t.Fatal(err)
	}
	if kept.Err() == nil {
		t.Error("the context goes on after the execution")
	}
	if _, err := idem.JoinedTxOf(kept); !errors.Is(err, idem.ErrExecutionEnded) {
		t.Errorf("JoinedTxOf() after the execution = %v, want ErrExecutionEnded", err)
	}
	if _, err := idem.JoinedTxOf(context.Background()); !errors.Is(err, idem.ErrNoExecution) {
		t.Errorf("JoinedTxOf() outside = %v, want ErrNoExecution", err)
	}
	plain := setup(t, parts{})
	_, _ = plain.doWith("k1", "100", func(ctx context.Context) (idem.Response, error) {
		if _, err := idem.JoinedTxOf(ctx); !errors.Is(err, idem.ErrNotJoined) {
			t.Errorf("JoinedTxOf() under New = %v, want ErrNotJoined", err)
		}
		return created(1), nil
	})
}

func TestJoinedTokenIsUsedOnce(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.IssuedTokens = true }})
	b.wantRefusal("made up", "100", idem.CodeTokenUnknown)
	token, err := b.engine.IssueToken(context.Background(), "m1", time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	if res, err := b.doWith(string(token.Value), "100", b.paying(500)); err != nil || res.Response.Status != 500 {
		t.Fatalf("Do() = %+v, %v, want 500", res, err)
	}
	b.wantState(string(token.Value), driver.StateIssued)
	b.ledger.onCommit = func(tx *bookTx, _ driver.Settlement) (bool, error) { // is rolled back, without an answer
		b.ledger.onCommit = nil
		b.wantState(string(token.Value), driver.StatePending)
		return true, tx.end(errors.New("connection reset"))
	}
	b.wantRefusal(string(token.Value), "100", idem.CodeUnavailable)
	b.wantState(string(token.Value), driver.StateIssued)
	b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) { return true, driver.JoinedBegin{Held: true}, nil }
	b.wantRefusal(string(token.Value), "100", idem.CodeInProgress) // it runs at another instance
	b.wantRefusal("made up", "100", idem.CodeTokenUnknown)
	b.ledger.onBegin = nil
	b.wantPayment(string(token.Value), "100", 3, false)
	b.wantPayment(string(token.Value), "100", 3, true)
	b.wantLines("payment 3")
}

// Duplicates of a completed request are answered by its record, and none is refused because another one is about to look at it.
func TestJoinedReplaysAtTheSameTime(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	b.wantPayment("k1", "100", 1, false)
	var clients sync.WaitGroup
	for range 16 {
		clients.Go(func() {
			for range 1000 {
				if res, err := b.do("k1", "100"); err != nil || !res.Replayed {
					t.Errorf("Do() = %+v, %v, want a replay", res, err)
					return
				}
			}
		})
	}
	clients.Wait()
}
