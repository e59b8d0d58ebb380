package idem_test

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// withoutKey sends a request without a key.
func (b *joinedBundle) withoutKey(t idem.Transport, h idem.Handler) (idem.Result, error) {
	return b.engine.DoWithoutKey(context.Background(), idem.Operation{Transport: t, Scope: "m1", Policy: &b.policy}, h)
}

// wantAdvice wants a refusal that speaks to a client without a key.
func (b *joinedBundle) wantAdvice(err error, code idem.Code) {
	b.Helper()
	b.wantRefused(err, code)
	r, _ := errors.AsType[*idem.Refusal](err)
	unknown := code == idem.CodeOutcomeUnknown
	if r.OperationID != "" || r.MayHaveHappened != unknown || (r.RetryAfter > 0) == unknown || strings.Contains(r.Detail(), "same key") {
		b.Errorf("refusal = %+v, want no operation, may have happened %t, and no word of a key that was not there", r, unknown)
	}
}

// Each answer of a handler ends its transaction as with a key, and reaches the client as it is.
func TestJoinedWithoutKeyEnds(t *testing.T) {
	t.Parallel()
	gate := func(ctx context.Context) { _, _ = idem.CheckOwner(ctx) }
	for name, tt := range map[string]struct {
		transport idem.Transport
		status    int
		before    func(ctx context.Context)
		timeout   time.Duration
		kept      bool // the writes
	}{
		"success commits":                   {transport: idem.TransportHTTP, status: 201, kept: true},
		"a redirect commits":                {transport: idem.TransportHTTP, status: 303, kept: true},
		"success after the deadline":        {transport: idem.TransportHTTP, status: 201, before: pastDeadline(t), timeout: time.Millisecond, kept: true},
		"402 rolls back":                    {transport: idem.TransportHTTP, status: 402},
		"402 with KeepWrites commits":       {transport: idem.TransportHTTP, status: 402, before: idem.KeepWrites, kept: true},
		"500 with KeepWrites rolls back":    {transport: idem.TransportHTTP, status: 500, before: idem.KeepWrites},
		"422 rolls back":                    {transport: idem.TransportHTTP, status: 422},
		"429 rolls back":                    {transport: idem.TransportHTTP, status: 429},
		"429 after the gate rolls back":     {transport: idem.TransportHTTP, status: 429, before: gate},
		"409 in doubt rolls back":           {transport: idem.TransportHTTP, status: 409},
		"500 rolls back":                    {transport: idem.TransportHTTP, status: 500},
		"402 after the deadline rolls back": {transport: idem.TransportHTTP, status: 402, before: pastDeadline(t), timeout: time.Millisecond},
		"NoEffect rolls back":               {transport: idem.TransportHTTP, status: 200, before: idem.NoEffect},
		"NotAdmitted rolls back":            {transport: idem.TransportHTTP, status: 404, before: idem.NotAdmitted},
		"gRPC OK commits":                   {transport: idem.TransportGRPC, status: 0, kept: true},
		"gRPC NOT_FOUND rolls back":         {transport: idem.TransportGRPC, status: 5},
		"gRPC ABORTED rolls back":           {transport: idem.TransportGRPC, status: 10},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.HandlerTimeout, p.StatusesInDoubt = tt.timeout, []int{409} }})
			var lines []string
			for run := range 2 { // a repeat is another request
				res, err := b.withoutKey(tt.transport, func(ctx context.Context) (idem.Response, error) {
					if tt.before != nil {
						tt.before(ctx)
					}
					return b.paying(tt.status)(ctx)
				})
				if err != nil || res.Response.Status != tt.status || res.Replayed || res.KeyID != (driver.KeyID{}) || res.Attempt != 0 {
					t.Errorf("DoWithoutKey() = %+v, %v, want the handler's %d", res, err, tt.status)
				}
				if tt.kept {
					lines = append(lines, fmt.Sprint("payment ", run+1))
				}
			}
			b.wantLines(lines...)
			if n := b.ledger.Len(); n != 0 {
				t.Errorf("%d records, want none", n)
			}
			b.wantEvents(telemetry.EventUnprotected, 2)
			b.wantEvents(telemetry.EventMisused, 0)
		})
	}
}

// What a handler asks for has an answer without a key, or an error that names it.
func TestJoinedWithoutKeyHandlersAreTold(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
	var left context.Context
	ask := func(ctx context.Context) (owner, tx, key, keyFor error) {
		_, owner = idem.CheckOwner(ctx)
		_, tx = idem.JoinedTxOf(ctx)
		_, key = idem.DownstreamKey(ctx, "bank")
		_, keyFor = idem.DownstreamKeyFor(ctx, "bank", [32]byte{1})
		return owner, tx, key, keyFor
	}
	_, err := b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
		left = ctx
		if x, ok := idem.FromContext(ctx); ok {
			t.Errorf("FromContext() = %+v, want none", x)
		}
		if lasts, err := idem.CheckOwner(ctx); err != nil || lasts != time.Minute {
			t.Errorf("CheckOwner() = %v, %v, want the time of the transaction", lasts, err)
		}
		_, _, key, keyFor := ask(ctx)
		for _, err := range []error{key, keyFor} {
			if !errors.Is(err, idem.ErrNoKey) || !errors.Is(err, idem.ErrNoExecution) || !strings.Contains(err.Error(), "without a key") {
				t.Errorf("DownstreamKey() = %v, want %v", err, idem.ErrNoKey)
			}
		}
		tx := b.write(ctx, "payment")
		tx.ended = true
		if _, err := idem.CheckOwner(ctx); !errors.Is(err, driver.ErrEscaped) {
			t.Errorf("CheckOwner() without its transaction = %v, want %v", err, driver.ErrEscaped)
		}
		tx.ended = false
		return idem.Response{Status: 201}, nil
	})
	if err != nil {
		t.Error(err)
	}
	owner, tx, key, keyFor := ask(left)
	for _, err := range []error{owner, tx, key, keyFor} {
		if !errors.Is(err, idem.ErrExecutionEnded) {
			t.Errorf("after the handler has returned: %v, want %v", err, idem.ErrExecutionEnded)
		}
	}
	b.wantLines("payment")
}

// COMMIT that fails is told as what is known of it. Nothing can be looked up later, so an answer that did not come is
// told as an outcome that is not known.
func TestJoinedWithoutKeyCommitThatFails(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		err    error
		code   idem.Code
		misuse bool
	}{
		"rolled back":            {driver.ErrRolledBack, idem.CodeUnavailable, false},
		"a conflict":             {driver.ErrConflict, idem.CodeUnavailable, false},
		"a failed statement":     {fmt.Errorf("%w: syntax", driver.ErrSwallowed), idem.CodeUnavailable, true},
		"ended by the handler":   {driver.ErrEscaped, idem.CodeOutcomeUnknown, true},
		"ended after a failure":  {errors.Join(driver.ErrEscaped, driver.ErrSwallowed), idem.CodeOutcomeUnknown, true},
		"ended after a conflict": {errors.Join(driver.ErrRolledBack, driver.ErrEscaped), idem.CodeOutcomeUnknown, true},
		"an answer that is not":  {errors.Join(driver.ErrUnavailable, errors.New("connection lost")), idem.CodeOutcomeUnknown, false},
	} {
		for _, before := range []func(context.Context){nil, idem.KeepWrites} {
			b := setupJoined(t, parts{})
			b.ledger.onCommit = func(*bookTx, driver.Settlement) (bool, error) { return true, tt.err }
			b.ledger.onProbe = func() error { t.Error("a record was looked for"); return nil }
			b.ledger.onSettle = func() error { t.Error("a record was written"); return nil }
			status := 201
			if before != nil {
				status = 402
			}
			_, err := b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
				if before != nil {
					before(ctx)
				}
				return b.paying(status)(ctx)
			})
			b.wantAdvice(err, tt.code)
			if n := b.saw(telemetry.EventMisused); (n == 1) != tt.misuse {
				t.Errorf("%s: %d events misused, want one: %t", name, n, tt.misuse)
			}
			if n := b.saw(telemetry.EventSettleAbandoned); (n == 1) != (tt.code == idem.CodeOutcomeUnknown && !tt.misuse) {
				t.Errorf("%s: %d events of a lost outcome", name, n)
			}
		}
	}
}

// A handler that ends its transaction by itself and fails may have committed. One that never takes it has told the client of what it
// did elsewhere, and a refusal would make the client repeat that.
func TestJoinedWithoutKeyMisuse(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	_, err := b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
		b.write(ctx, "payment").ended = true
		return idem.Response{Status: 500}, nil
	})
	b.wantAdvice(err, idem.CodeOutcomeUnknown)
	b.wantEvents(telemetry.EventMisused, 1)

	res, err := b.withoutKey(idem.TransportHTTP, answers(201))
	if err != nil || res.Response.Status != 201 {
		t.Errorf("DoWithoutKey() = %+v, %v of a handler that pays elsewhere, want its 201", res, err)
	}
	b.wantEvents(telemetry.EventMisused, 2)
	_, err = b.withoutKey(idem.TransportHTTP, answers(402))
	if err != nil {
		t.Error(err)
	}
	b.wantEvents(telemetry.EventMisused, 2)

	misuse := errors.New("a time-out answered")
	_, err = b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
		b.engine.ReportMisused(ctx, misuse)
		b.write(ctx, "payment")
		return idem.Response{Status: 201}, idem.NewRefusal(idem.CodeUnavailable, misuse)
	})
	b.wantAdvice(err, idem.CodeUnavailable)
	b.wantEvents(telemetry.EventMisused, 3)
	b.wantLines()
}

func TestJoinedWithoutKeyPanicRollsBackAndGoesOn(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	func() {
		defer func() {
			if p := recover(); p != "boom" {
				t.Errorf("DoWithoutKey() panics with %v, want the panic of the handler", p)
			}
		}()
		_, _ = b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
			b.write(ctx, "payment")
			panic("boom")
		})
	}()
	b.wantLines()
	b.wantEvents(telemetry.EventMisused, 0)
}

// A conflict runs the handler again, and a request that cannot run again is refused as not done.
func TestJoinedWithoutKeyConflict(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		meets   func(b *joinedBundle, ctx context.Context)
		runOnce bool
		want    int64 // runs
	}{
		"at COMMIT": {func(b *joinedBundle, _ context.Context) {
			b.ledger.onCommit = func(*bookTx, driver.Settlement) (bool, error) {
				b.ledger.onCommit = nil
				return true, driver.ErrConflict
			}
		}, false, 2},
		"reported": {func(_ *joinedBundle, ctx context.Context) { idem.ReportFailure(ctx, errDeadlock) }, false, 2},
		"at COMMIT, and runs once": {func(b *joinedBundle, _ context.Context) {
			b.ledger.onCommit = func(*bookTx, driver.Settlement) (bool, error) { return true, driver.ErrConflict }
		}, true, 1},
	} {
		b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(1)}})
		op := idem.Operation{Transport: idem.TransportHTTP, Policy: &b.policy, RunOnce: tt.runOnce}
		res, err := b.engine.DoWithoutKey(t.Context(), op, func(ctx context.Context) (idem.Response, error) {
			resp, _ := b.paying(201)(ctx)
			if b.runs.Load() == 1 {
				tt.meets(b, ctx)
				if name == "reported" {
					resp.Status = 500
				}
			}
			return resp, nil
		})
		if b.wantRuns(tt.want); tt.want == 1 {
			b.wantAdvice(err, idem.CodeUnavailable)
			continue
		}
		b.wantPaid(res, err, 2, false)
		b.wantLines("payment 2")
		b.wantEvents(telemetry.EventConflict, 1)
	}
}

// A rollback does not undo what the handler has done in other systems, and no key keeps a repeat from doing it again. So nobody
// repeats it: neither the engine after a conflict, nor the client unseen.
func TestJoinedWithoutKeyThatHasCalledOthers(t *testing.T) {
	t.Parallel()
	commitMeets := func(err error) func(*joinedBundle, context.Context) (int, error) {
		return func(b *joinedBundle, _ context.Context) (int, error) {
			b.ledger.onCommit = func(*bookTx, driver.Settlement) (bool, error) { return true, err }
			return 201, nil
		}
	}
	for name, meets := range map[string]func(*joinedBundle, context.Context) (int, error){
		"a conflict at COMMIT":  commitMeets(driver.ErrConflict),
		"a rollback at COMMIT":  commitMeets(driver.ErrRolledBack),
		"a swallowed error":     commitMeets(driver.ErrSwallowed),
		"an answer of others":   func(*joinedBundle, context.Context) (int, error) { return 201, errors.New("a time-out answered") },
		"a conflict of its own": func(*joinedBundle, context.Context) (int, error) { return 500, errDeadlock },
	} {
		log := new(lines)
		b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(3), idem.WithLogger(log.logger())}, policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
		calls := 0
		_, err := b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
			calls++
			b.write(ctx, "payment")
			status, err := meets(b, ctx)
			return idem.Response{Status: status}, err
		})
		if b.wantAdvice(err, idem.CodeOutcomeUnknown); calls != 1 || t.Failed() {
			t.Fatalf("%s: %d calls of the bank, want 1", name, calls)
		}
		b.wantLines()
		if strings.Contains(name, "COMMIT") {
			log.want(t, "outcome-unknown", "look what they have")
		}
	}
	b := setupJoined(t, parts{opts: []idem.Option{idem.WithConflictRetries(3)}, policy: func(p *idem.Policy) { p.CallsOtherSystems = true }})
	res, err := b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
		idem.ReportFailure(ctx, errDeadlock)
		return idem.Response{Status: 500}, nil
	})
	if err != nil || res.Response.Status != 500 {
		t.Errorf("DoWithoutKey() = %+v, %v after a conflict that the handler answers with 500, want that", res, err)
	}
	undeclared := setupJoined(t, parts{})
	_, err = undeclared.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
		if _, err := idem.DownstreamKey(ctx, "bank"); !errors.Is(err, idem.ErrUndeclared) {
			t.Errorf("DownstreamKey() = %v, want %v as with a key", err, idem.ErrUndeclared)
		}
		return undeclared.paying(201)(ctx)
	})
	if err != nil {
		t.Error(err)
	}
}

// Nothing runs without a transaction, or after Close, or beyond the limit of the scope.
func TestJoinedWithoutKeyThatDoesNotRun(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{opts: []idem.Option{idem.WithMaxOpenExecutionsPerScope(1)}})
	b.ledger.onBegin = func() (bool, driver.JoinedBegin, error) {
		return true, driver.JoinedBegin{}, errors.Join(driver.ErrUnavailable, errors.New("connection refused"))
	}
	_, err := b.withoutKey(idem.TransportHTTP, b.paying(201))
	b.wantAdvice(err, idem.CodeUnavailable)
	b.ledger.onBegin = nil
	_, err = b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
		_, err := b.withoutKey(idem.TransportHTTP, b.paying(201))
		b.wantRefused(err, idem.CodeTooManyOpen)
		op := idem.Operation{Transport: idem.TransportHTTP, Policy: &b.policy} // whose scope is not known
		if _, err := b.engine.DoWithoutKey(ctx, op, b.paying(201)); err != nil {
			t.Errorf("DoWithoutKey() without a scope = %v", err)
		}
		return b.paying(201)(ctx)
	})
	if err != nil {
		t.Error(err)
	}
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	_, err = b.engine.DoWithoutKey(gone, idem.Operation{Transport: idem.TransportHTTP, Policy: &b.policy}, b.paying(201))
	b.wantAdvice(err, idem.CodeUnavailable)
	wrong := b.policy
	wrong.DuplicateWait = -1
	for _, op := range []idem.Operation{{}, {Policy: &wrong}} {
		_, err = b.engine.DoWithoutKey(t.Context(), op, b.paying(201))
		b.wantRefused(err, idem.CodeInternal)
	}
	if err := b.engine.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	_, err = b.withoutKey(idem.TransportHTTP, b.paying(201))
	b.wantAdvice(err, idem.CodeUnavailable)
	b.wantLines("payment 1", "payment 2")

	locked := setup(t, parts{})
	_, err = locked.engine.DoWithoutKey(t.Context(), idem.Operation{Policy: &locked.policy}, locked.pay)
	locked.wantRefused(err, idem.CodeInternal)
	locked.wantRuns(0)
}

// Close waits for the transaction of a request without a key.
func TestJoinedCloseWaitsForARequestWithoutAKey(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	running, release, done := make(chan struct{}), make(chan struct{}), make(chan error, 1)
	go func() {
		_, err := b.withoutKey(idem.TransportHTTP, func(ctx context.Context) (idem.Response, error) {
			close(running)
			<-release
			return b.paying(201)(ctx)
		})
		done <- err
	}()
	<-running
	if n := b.engine.Running().Count; n != 1 {
		t.Errorf("%d handlers run, want 1", n)
	}
	over, cancel := context.WithCancel(t.Context())
	cancel()
	if err := b.engine.Close(over); err == nil {
		t.Error("Close() = nil while a handler runs")
	}
	close(release)
	if err := b.engine.Close(t.Context()); err != nil || <-done != nil {
		t.Errorf("Close() = %v", err)
	}
	b.wantLines("payment 1")
}

// A request without a key from within an execution that has a transaction is part of that.
func TestJoinedWithoutKeyNested(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	other := setupJoined(t, parts{})
	nested := func(ctx context.Context, want bool) {
		t.Helper()
		op := idem.Operation{Transport: idem.TransportHTTP, Policy: &b.policy}
		if part, err := b.engine.Nested(ctx, &op); part != want || err != nil {
			t.Errorf("Nested() = %t, %v, want %t", part, err, want)
		}
		if part, err := other.engine.Nested(ctx, &op); part || err != nil {
			t.Errorf("Nested() of another engine = %t, %v, want false", part, err)
		}
	}
	var left context.Context
	h := func(ctx context.Context) (idem.Response, error) {
		left = ctx
		nested(ctx, true)
		return b.paying(201)(ctx)
	}
	_, err := b.withoutKey(idem.TransportHTTP, h)
	if err != nil {
		t.Error(err)
	}
	nested(left, false)
	if _, err := b.doWith("k1", "100", h); err != nil {
		t.Error(err)
	}
	nested(t.Context(), false)
}

// The operator sees from which routes requests still come without a key, in every mode.
func TestRequestsWithoutAKeyAreCounted(t *testing.T) {
	t.Parallel()
	b := setupJoined(t, parts{})
	if got := b.engine.WithoutKey(); len(got) != 0 {
		t.Errorf("WithoutKey() = %v before any", got)
	}
	before := time.Now()
	for range 3 {
		_, _ = b.withoutKey(idem.TransportHTTP, b.paying(201))
	}
	b.engine.ReportUnprotected(t.Context(), "POST /refund")
	b.engine.ReportUnprotected(t.Context(), "POST /capture")
	b.wantPayment("k1", "100", 4, false)
	got := b.engine.WithoutKey()
	if len(got) != 3 || got[0].Route != "POST /pay" || got[0].Count != 3 || got[1].Route != "POST /capture" || got[2].Route != "POST /refund" || got[2].Count != 1 {
		t.Errorf("WithoutKey() = %+v, want 3 of POST /pay, and one of each other", got)
	}
	for _, n := range got {
		if n.Last.Before(before) || n.Last.After(time.Now()) {
			t.Errorf("the last one of %s came at %v", n.Route, n.Last)
		}
	}
	b.wantEvents(telemetry.EventUnprotected, 5)

	for n := range 2000 { // methods that clients make up
		b.engine.ReportUnprotected(t.Context(), fmt.Sprint("/made/up", n))
	}
	all := uint64(0)
	for _, n := range b.engine.WithoutKey() {
		all += n.Count
	}
	if got = b.engine.WithoutKey(); len(got) > 1001 || all != 2005 || got[0].Route != "other" {
		t.Errorf("WithoutKey() has %d routes with %d requests, the first one %q, want about 1000, 2005 and other", len(got), all, got[0].Route)
	}
}
