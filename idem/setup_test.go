package idem_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMain(m *testing.M) {
	slog.SetDefault(slog.New(slog.DiscardHandler)) // the tests make many faults on purpose
	goleak.VerifyTestMain(m)
}

// patience bounds what a test waits for; reaching it is a failure.
const patience = 30 * time.Second

// bundle is an engine on in-process parts, fresh for each test.
type bundle struct {
	*testing.T
	engine *idem.Engine
	locker *memorylock.Locker
	store  driver.Store
	ahead  *atomic.Int64 // the clock of store, in nanoseconds ahead of ours
	policy idem.Policy
	faults *idemtest.FaultyStore  // in front of store
	locks  *idemtest.FaultyLocker // in front of locker
	runs   atomic.Int64           // how often the default handler ran

	mu     sync.Mutex
	events []telemetry.Event
}

// unhurried are the options of tests that hold a call back, for which a busy machine may take longer than the usual time-outs.
var unhurried = []idem.Option{idem.WithStoreTimeout(patience), idem.WithLockTimeout(patience)}

// parts is what differs from the defaults.
type parts struct {
	opts   []idem.Option
	policy func(*idem.Policy)
}

func setup(t *testing.T, p parts) *bundle {
	t.Helper()
	b := &bundle{T: t, locker: memorylock.New(), ahead: new(atomic.Int64)}
	b.store = b.newStore()
	b.locks, b.faults = idemtest.NewFaultyLocker(b.locker), idemtest.NewFaultyStore(b.store)
	opts := append([]idem.Option{idem.WithObserver(b.observe)}, p.opts...)
	engine, err := idem.New(b.locks, b.faults, opts...)
	if err != nil {
		t.Fatalf("New() = %v", err)
	}
	b.engine = engine
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		_ = engine.Close(ctx) // tests of Close look at its error
	})
	b.policy = idem.Policy{Name: "POST /pay", Scope: func(context.Context) (string, error) { return "m1", nil }, InDoubt: idem.LeaveUnknown()}
	if p.policy != nil {
		p.policy(&b.policy)
	}
	b.policy = withDefaults(t, b.policy)
	return b
}

// newStore is an empty store with the clock of the bundle.
func (b *bundle) newStore() *memorystore.Store {
	return memorystore.New(memorystore.WithClock(func() time.Time { return time.Now().Add(time.Duration(b.ahead.Load())) }))
}

// advance moves the clock of the store.
func (b *bundle) advance(d time.Duration) { b.ahead.Add(int64(d)) }

// another is a second engine, with other parts.
func (b *bundle) another(l driver.Locker, s driver.Store, opts ...idem.Option) *idem.Engine {
	b.Helper()
	e, err := idem.New(l, s, opts...)
	if err != nil {
		b.Fatalf("New() = %v", err)
	}
	b.Cleanup(func() { _ = e.Close(context.Background()) })
	return e
}

func withDefaults(t *testing.T, p idem.Policy) idem.Policy {
	t.Helper()
	p, err := p.WithDefaults()
	if err != nil {
		t.Fatalf("WithDefaults() = %v", err)
	}
	return p
}

func (b *bundle) observe(_ context.Context, ev telemetry.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, ev)
}

// saw counts events of a type.
func (b *bundle) saw(t telemetry.EventType) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	n := 0
	for _, ev := range b.events {
		if ev.Type == t {
			n++
		}
	}
	return n
}

func (b *bundle) wantEvents(t telemetry.EventType, n int) {
	b.Helper()
	if got := b.saw(t); got != n {
		b.Errorf("%d events %v, want %d", got, t, n)
	}
}

// eventually waits for a condition.
func (b *bundle) eventually(what string, ok func() bool) {
	b.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			b.Fatalf("never happened: %s", what)
		}
		<-tick.C
	}
}

func fingerprintOf(transport, body string) idem.Fingerprinter {
	return func(v uint8) (driver.Fingerprint, error) { return idem.NewFingerprint(v, transport+" POST /pay", body) }
}

func (b *bundle) operation(key, body string) idem.Operation {
	return idem.Operation{Transport: idem.TransportHTTP, Scope: "m1", Key: idem.Key(key), Policy: &b.policy,
		Fingerprint: fingerprintOf("http", body)}
}

// do sends a request whose handler answers 201 with the run's number.
func (b *bundle) do(key, body string) (idem.Result, error) {
	return b.doWith(key, body, b.pay)
}

func (b *bundle) pay(context.Context) (idem.Response, error) {
	return created(b.runs.Add(1)), nil
}

func (b *bundle) doWith(key, body string, h idem.Handler) (idem.Result, error) {
	return b.engine.Do(context.Background(), b.operation(key, body), h)
}

func created(run int64) idem.Response {
	return idem.Response{Status: 201, Body: fmt.Appendf(nil, "payment %d", run)}
}

// wantPayment sends a request, and wants the payment of a run for it.
func (b *bundle) wantPayment(key, body string, run int, replayed bool) idem.Result {
	b.Helper()
	res, err := b.do(key, body)
	b.wantPaid(res, err, run, replayed)
	return res
}

// wantRefusal sends a request, and wants it refused.
func (b *bundle) wantRefusal(key, body string, code idem.Code) {
	b.Helper()
	_, err := b.do(key, body)
	b.wantRefused(err, code)
}

// wantAnswer sends a request whose handler answers with a status, and wants that answer.
func (b *bundle) wantAnswer(key, body string, status int) {
	b.Helper()
	res, err := b.doWith(key, body, answers(status))
	if err != nil || res.Response.Status != status || res.Replayed {
		b.Fatalf("Do() = %d, replayed %t, %v, want the handler's %d", res.Response.Status, res.Replayed, err, status)
	}
}

// wantRefusalBy is wantRefusal at another engine.
func (b *bundle) wantRefusalBy(e *idem.Engine, op idem.Operation, code idem.Code) {
	b.Helper()
	_, err := e.Do(b.Context(), op, b.pay)
	b.wantRefused(err, code)
}

// doWhenFree sends a request again until the key is no longer in progress.
func (b *bundle) doWhenFree(key, body string) (res idem.Result, err error) {
	b.Helper()
	b.eventually("the key is free", func() bool {
		res, err = b.do(key, body)
		return !refusedAs(err, idem.CodeInProgress)
	})
	return res, err
}

func refusedAs(err error, code idem.Code) bool {
	r, ok := errors.AsType[*idem.Refusal](err)
	return ok && r.Code == code
}

// derived is the key for the next system.
func derived(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	key, err := idem.DownstreamKey(ctx, name)
	if err != nil {
		t.Errorf("DownstreamKey(%q) = %v", name, err)
	}
	return key
}

// answers makes a handler that answers with a status.
func answers(status int) idem.Handler {
	return func(context.Context) (idem.Response, error) { return idem.Response{Status: status}, nil }
}

func (b *bundle) wantPaid(res idem.Result, err error, run int, replayed bool) {
	b.Helper()
	if err != nil {
		b.Fatalf("Do() = %v, want payment %d", err, run)
	}
	if got, want := string(res.Response.Body), fmt.Sprintf("payment %d", run); got != want || res.Response.Status != 201 {
		b.Errorf("Do() = %d %q, want 201 %q", res.Response.Status, got, want)
	}
	if res.Replayed != replayed {
		b.Errorf("Do() replayed = %t, want %t", res.Replayed, replayed)
	}
}

func (b *bundle) wantRefused(err error, code idem.Code) {
	b.Helper()
	var r *idem.Refusal
	if !errors.As(err, &r) || r.Code != code {
		b.Fatalf("Do() = %v, want refusal %s", err, code)
	}
}

// wantDoubt checks what a client is told of a key in doubt.
func (b *bundle) wantDoubt(err error, key string, retryAfter time.Duration) {
	b.Helper()
	b.wantRefused(err, idem.CodeOutcomeUnknown)
	r, _ := errors.AsType[*idem.Refusal](err)
	if id := idem.NewKeyID("m1", idem.Key(key)).OperationID(); r.OperationID != id || !r.MayHaveHappened || r.RetryAfter != retryAfter {
		b.Errorf("refusal = operation %q, may have happened %t, retry after %v, want %q, true, %v", r.OperationID, r.MayHaveHappened, r.RetryAfter, id, retryAfter)
	}
}

// decidesNothing reports whether every client reads a status as "nothing is decided".
func decidesNothing(t idem.Transport, status int) bool {
	if t == idem.TransportHTTP {
		return status == 408 || status == 499 || status >= 500
	}
	return slices.Contains([]int{1, 2, 4, 10, 13, 14, 15, 99}, status)
}

func (b *bundle) wantRuns(n int64) {
	b.Helper()
	if got := b.runs.Load(); got != n {
		b.Errorf("handler ran %d times, want %d", got, n)
	}
}

func (b *bundle) wantState(key string, want driver.State) idem.Status {
	b.Helper()
	got, err := b.engine.Status(context.Background(), "m1", idem.Key(key))
	if err != nil || got.State != want {
		b.Fatalf("Status(%q) = %v, %v, want %v", key, got.State, err, want)
	}
	return got
}

// started runs a request whose handler waits until finish is called, and
// returns once the handler runs.
func (b *bundle) started(key, body string, h idem.Handler) (finish func() (idem.Result, error)) {
	b.Helper()
	running, release := make(chan struct{}), make(chan struct{})
	type answer struct {
		res idem.Result
		err error
	}
	done := make(chan answer, 1)
	go func() {
		res, err := b.doWith(key, body, func(ctx context.Context) (idem.Response, error) {
			close(running)
			<-release
			return h(ctx)
		})
		done <- answer{res, err}
	}()
	select {
	case <-running:
	case a := <-done:
		b.Fatalf("Do() = %v, %v before its handler ran", a.res, a.err)
	}
	return sync.OnceValues(func() (idem.Result, error) {
		close(release)
		a := <-done
		return a.res, a.err
	})
}

// issue makes the key an issued token.
func (b *bundle) issue(key string) {
	b.Helper()
	if _, err := b.store.Issue(context.Background(), idem.NewKeyID("m1", idem.Key(key)), idem.DefaultTokenTTL); err != nil {
		b.Fatal(err)
	}
}

// storeAttempt puts an attempt of key k into the store, and settles it unless it is to be pending.
func (b *bundle) storeAttempt(fence driver.Fence, nonce driver.Nonce, state driver.State) {
	b.Helper()
	id := idem.NewKeyID("m1", "k")
	fp, _ := fingerprintOf("http", "a")(1)
	got, err := b.store.Begin(context.Background(), id, driver.BeginRequest{Kind: b.kind(), Fence: fence, Nonce: nonce, Fingerprint: fp})
	if err == nil && state != driver.StatePending {
		_, err = b.store.Settle(context.Background(), id, driver.Settlement{Attempt: got.Record.Attempt, State: state, KeyTTL: idem.DefaultKeyTTL})
	}
	if err != nil {
		b.Fatal(err)
	}
}

// hold takes the lock of a key, as another instance does.
func (b *bundle) hold(key string) driver.Lease {
	b.Helper()
	lease, err := b.locker.TryAcquire(context.Background(), driver.LockRequest{KeyID: idem.NewKeyID("m1", idem.Key(key)), Nonce: driver.NewNonce()})
	if err != nil {
		b.Fatal(err)
	}
	return lease
}

// kind is the kind of the keys of the route.
func (b *bundle) kind() driver.KeyKind {
	if b.policy.IssuedTokens {
		return driver.IssuedToken
	}
	return driver.ClientKey
}
