package idem

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

var (
	// ErrNoExecution says that a context does not come from a handler run by an [Engine].
	ErrNoExecution = errors.New("idem: not inside an execution: pass the context of the request, and look whether the middleware is on this route")
	// ErrExecutionEnded says that the handler of a context has returned. Code that still runs
	// for it must not send anything. The engine settles the outcome without that code, and
	// another owner may have the lock by now.
	ErrExecutionEnded = errors.New("idem: the execution has ended")
	// ErrCallNameReused says that an execution asked for the key of two different requests under
	// one name. The other system would take the second request for a repeat of the first.
	ErrCallNameReused = errors.New("idem: two different requests under one call name: give each a name of its own")

	errPanic = errors.New("idem: handler panicked")
)

// Execution describes the execution of a handler or a resolver to that.
type Execution struct {
	KeyID       driver.KeyID
	OperationID string       // the same for every attempt
	Attempt     uint32       // 1, 2, …
	Fence       driver.Fence // for resources that check it; zero in joined mode, and if the route failed open
}

// execution is an Execution in progress and the context in which it runs. The context ends
// at a deadline, or as soon as the lease cannot be trusted.
type execution struct {
	context.Context
	cancel   context.CancelCauseFunc
	core     *core
	of       *request   // the request of the attempt
	outer    *execution // the execution that made the request, or nil
	resolves bool       // it runs the resolver for the attempt
	owner    owner      // of the key
	attempt  driver.Attempt
	gated    atomic.Bool
	known    atomic.Bool // the handler knows its operation and its fence
	noEffect atomic.Bool
	refused  atomic.Bool // see NotAdmitted
	misused  atomic.Bool // the answer may not be the handler's
	ended    atomic.Bool // its handler has returned
	calls    sync.Map    // name to [sha256.Size]byte: the request that has the key of the name

	// In joined mode:
	taken      atomic.Bool           // the handler has the transaction
	keepWrites atomic.Bool           // a refusal commits with the writes of the handler
	conflict   atomic.Pointer[error] // that the handler has reported
}

// execute is step 6: it runs the handler of an attempt. If the handler panics or exits, panicked
// settles the attempt before that goes on.
func (c *core) execute(ctx context.Context, run *run, by owner, h Handler, panicked func()) {
	r := run.request
	r.telemetry.attempt = run.settlement.Attempt.Number
	inner, step := c.startStep(ctx, telemetry.StepHandler, r)
	run.span = step.span()
	x := c.newExecution(inner, r, by, run.settlement.Attempt, r.Policy.HandlerTimeout)
	run.execution = x
	defer x.end()
	c.handlerStarted(ctx, run)
	defer c.handlerEnded(run)

	returned := false
	defer func() {
		x.ended.Store(true)
		if !returned {
			run.err = errPanic
			step.end(r, errPanic)
			panicked()
		}
	}()
	run.response, run.err = h(x)
	returned = true
	run.cut = x.Err() != nil // before telemetry, which may take its time
	step.end(r, run.err)
}

// newExecution returns the execution of an attempt by the owner of its key. limit is 0 if there is no
// deadline.
func (c *core) newExecution(ctx context.Context, r *request, by owner, attempt driver.Attempt, limit time.Duration) *execution {
	x := &execution{core: c, of: r, attempt: attempt, outer: executionOf(ctx), owner: by}
	ctx, cancel := context.WithCancelCause(ctx)
	x.Context, x.cancel = ctx, cancel
	if limit > 0 {
		var stopTimer context.CancelFunc
		x.Context, stopTimer = context.WithTimeout(ctx, limit)
		x.cancel = func(cause error) { cancel(cause); stopTimer() }
	}
	by.watch(x.Context, cancel)
	return x
}

// Err is that of the context. It asks the owner first, so it tells of a loss even if Done is
// late, after the machine was suspended.
func (x *execution) Err() error {
	if x.owner.Err() != nil {
		x.cancel(driver.ErrLeaseLost)
	}
	return x.Context.Err()
}

// transaction is that of an execution in joined mode, or nil.
func (x *execution) transaction() driver.JoinedTx {
	if t, ok := x.owner.(transaction); ok {
		return t.JoinedTx
	}
	return nil
}

// keyless reports whether the request has no key. Such an execution has a transaction and nothing else.
func (x *execution) keyless() bool { return x.of != nil && x.of.id == (driver.KeyID{}) }

// end is called when the handler has returned.
func (x *execution) end() {
	x.ended.Store(true)
	x.cancel(context.Canceled)
}

type executionKey struct{}

// carriedKey stands for executionKey in contexts with string keys only.
const carriedKey = "github.com/idemkeeper/idemkeeper/idem"

// Value returns the execution itself, or a value of the context.
func (x *execution) Value(key any) any {
	if key == (executionKey{}) {
		return x
	}
	return x.Context.Value(key)
}

func executionOf(ctx context.Context) *execution {
	if x, ok := ctx.Value(executionKey{}).(*execution); ok {
		return x
	}
	x, _ := ctx.Value(carriedKey).(*execution)
	return x
}

// ExecutionValue returns the execution of ctx as a value under a string key. It is for adapters
// of frameworks with a context of their own that finds string keys only. The functions of this
// package accept such a context after the adapter has set the value. The value is nil outside
// of an execution.
func ExecutionValue(ctx context.Context) (key string, value any) {
	if x := executionOf(ctx); x != nil {
		return carriedKey, x
	}
	return carriedKey, nil
}

// FromContext returns the execution of ctx, and false outside of one and for a request without a key. It also
// describes an execution that has ended.
func FromContext(ctx context.Context) (Execution, bool) {
	x := executionOf(ctx)
	if x == nil || x.keyless() {
		return Execution{}, false
	}
	x.known.Store(true)
	return Execution{KeyID: x.of.id, OperationID: x.of.id.OperationID(), Attempt: x.attempt.Number, Fence: x.owner.Fence()}, true
}

// CheckOwner is the gate to call right before an irreversible send. It confirms that this
// execution still holds its lock. It asks the lock service if the last confirmation is older
// than a quarter of the session. It returns how long you can rely on that from now. The send
// has to be over by then, and before the handler returns. Do not send after an error. The error
// wraps ErrLeaseLost, ErrUnavailable, ErrNoExecution, ErrExecutionEnded or the error of ctx or
// of the context of the handler.
//
// A send cannot be taken back. After CheckOwner a refusal such as 429 no longer means "nothing
// happened".
//
// In joined mode CheckOwner asks the transaction, and the error wraps ErrEscaped if the handler
// has ended that by itself. That is all that it confirms for a request without a key.
func CheckOwner(ctx context.Context) (time.Duration, error) {
	x, err := gate(ctx)
	if err != nil {
		return 0, err
	}
	if x.Err() != nil && x.owner.Err() == nil {
		return 0, context.Cause(x)
	}
	if ctx.Done() == nil { // the context of Gin, for example, does not end with the execution
		ctx = x
	}
	return x.owner.Check(ctx)
}

// DownstreamKey derives the idempotency key for the system called name. It is the same for
// every attempt, differs for every name, and does not reveal the key of the caller. The error
// is ErrNoExecution, ErrExecutionEnded or, in joined mode, ErrUndeclared. The key is "" then,
// and you must not send. Otherwise it is ErrNoKey for a request without a key, which has none to derive from.
// Like [CheckOwner] it marks the attempt as one that may have had effects.
func DownstreamKey(ctx context.Context, name string) (string, error) {
	x, err := gate(ctx)
	if err != nil {
		return "", err
	}
	if x.transaction() != nil && !x.of.Policy.CallsOtherSystems {
		return "", ErrUndeclared
	}
	if x.keyless() {
		return "", ErrNoKey
	}
	return downstreamKey(x.of.id.OperationID(), name), nil
}

// DownstreamKeyFor is [DownstreamKey] for a request that is compared with the others of this
// execution. request is a hash of all that tells it from another one, such as URL and body. If
// the execution has asked for the key of this name for another request, the error is
// ErrCallNameReused, and you must not send. A request that is sent again has its key again.
func DownstreamKeyFor(ctx context.Context, name string, request [sha256.Size]byte) (string, error) {
	key, err := DownstreamKey(ctx, name)
	if err != nil {
		return "", err
	}
	if first, _ := executionOf(ctx).calls.LoadOrStore(name, request); first != request {
		return "", fmt.Errorf("%w: %q", ErrCallNameReused, name)
	}
	return key, nil
}

// gate returns the execution of ctx and marks it as one that may have had effects. After the
// execution has ended, gate returns an error and reports an event.
func gate(ctx context.Context) (*execution, error) {
	x := executionOf(ctx)
	if x == nil {
		return nil, ErrNoExecution
	}
	// The mark comes first. Either the engine sees it after the handler has returned, or this
	// function sees that the execution has ended.
	x.gated.Store(true)
	if x.ended.Load() {
		x.tooLate()
		return nil, ErrExecutionEnded
	}
	x.noEffect.Store(false) // it was declared for what came before
	return x, nil
}

// tooLate reports code that goes on after the handler has returned. The context of its call may be one that a framework uses again for
// another request, so the context is that of the execution.
func (x *execution) tooLate() {
	x.core.observe(x, x.of, telemetry.Event{Type: telemetry.EventTooLate, Attempt: x.attempt, Err: ErrExecutionEnded})
}

// NoEffect declares that this execution had no effect and will have none, with any answer. The
// engine releases the key, and a repeat runs afresh. The declaration is void if the execution
// passes the gate afterwards ([CheckOwner], [DownstreamKey]), or if middleware has answered in place
// of the handler. NoEffect does nothing outside of an execution, or after that has ended.
func NoEffect(ctx context.Context) {
	if x := executionOf(ctx); x != nil && !x.ended.Load() {
		x.noEffect.Store(true)
	}
}

// NotAdmitted is for adapters. It declares that the answer, whatever its status is, says that the
// request was not admitted, as 403 and 429 do. An answer of 404 for a request without a route is
// one. Unlike [NoEffect] it does not speak for the handler. So the outcome is in doubt if the
// execution has passed the gate ([CheckOwner], [DownstreamKey]), or has asked for its operation and its
// fence ([FromContext]). NotAdmitted does nothing outside of an execution, or after that has ended.
func NotAdmitted(ctx context.Context) {
	if x := executionOf(ctx); x != nil && !x.ended.Load() {
		x.refused.Store(true)
	}
}

// JoinedTxOf is for joined stores, which give the transaction to the handler in a type of their
// own. It returns the transaction of an execution and notes that the handler has taken it. If a
// store wraps another one, such as package sealed, its transactions have a method Unwrap, and the
// innermost one is returned. The error is ErrNoExecution, ErrExecutionEnded or ErrNotJoined.
func JoinedTxOf(ctx context.Context) (driver.JoinedTx, error) {
	x := executionOf(ctx)
	switch {
	case x == nil:
		return nil, ErrNoExecution
	case x.transaction() == nil:
		return nil, ErrNotJoined
	}
	x.taken.Store(true)
	if x.ended.Load() {
		x.tooLate()
		return nil, ErrExecutionEnded
	}
	tx := x.transaction()
	for {
		outer, ok := tx.(interface{ Unwrap() driver.JoinedTx })
		if !ok {
			return tx, nil
		}
		tx = outer.Unwrap()
	}
}

// KeepWrites declares that a refusal of the handler commits together with what the handler wrote
// in its joined transaction, such as a row that says "declined". It applies to an answer that is
// stored and is no success, such as 402. Without it the writes are rolled back and the answer is
// stored alone. All other answers roll back in any case. KeepWrites does nothing outside of a
// joined execution, or after that has ended.
func KeepWrites(ctx context.Context) {
	if x := executionOf(ctx); x != nil && x.transaction() != nil && !x.ended.Load() {
		x.keepWrites.Store(true)
	}
}

// ReportFailure tells the engine the error of a statement in the joined transaction because of
// which the handler is about to fail. If the error is a serialisation failure or a deadlock, an
// engine with [WithConflictRetries] rolls back and runs the handler again. The adapters for Gin
// and gRPC report the errors of c.Error and those that a method returns. A method that makes a
// gRPC status of the error hides it from the adapter, and reports it by itself. ReportFailure does
// nothing outside of a joined execution, or after that has ended.
func ReportFailure(ctx context.Context, err error) {
	x := executionOf(ctx)
	if x == nil || err == nil || x.ended.Load() {
		return
	}
	if tx := x.transaction(); tx != nil && tx.Conflict(err) {
		x.conflict.Store(&err)
	}
}
