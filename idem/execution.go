package idem

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

var (
	// ErrNoExecution says that a context is not that of a handler run by an
	// [Engine].
	ErrNoExecution = errors.New("idem: not inside an execution")
	// ErrExecutionEnded says that the handler of a context has returned. What
	// still runs in its name must not send anything: the outcome is being settled
	// without it, and the lock may be another's by now.
	ErrExecutionEnded = errors.New("idem: the execution has ended")
)

// Execution is what a handler or a resolver can know of the execution it is
// part of.
type Execution struct {
	KeyID       KeyID
	OperationID string // the same for every attempt
	Attempt     uint32 // 1, 2, …
	Fence       Fence  // to be given to resources that check it; zero where a route failed open
}

// execution is an Execution in progress and the context in which it runs. The context ends
// at a deadline, or as soon as the lease cannot be trusted.
type execution struct {
	context.Context
	cancel   context.CancelCauseFunc
	engine   *Engine
	of       *request   // whose attempt it is
	outer    *execution // in which the request was made; nil: none
	resolves bool       // it runs a resolver, which asks about the attempt
	lease    Lease      // nil if a route failed open
	attempt  Attempt
	gated    atomic.Bool
	noEffect atomic.Bool
	ended    atomic.Bool // its handler has returned
}

// newExecution returns the execution of an attempt. lease is nil if the route failed open.
// limit is 0 if there is no deadline.
func (e *Engine) newExecution(ctx context.Context, r *request, lease Lease, attempt Attempt, limit time.Duration) *execution {
	x := &execution{engine: e, of: r, attempt: attempt, outer: executionOf(ctx), lease: lease}
	ctx, cancel := context.WithCancelCause(ctx)
	x.Context, x.cancel = ctx, cancel
	if limit > 0 {
		var stopTimer context.CancelFunc
		x.Context, stopTimer = context.WithTimeout(ctx, limit)
		x.cancel = func(cause error) { cancel(cause); stopTimer() }
	}
	if lease != nil {
		go watch(x.Context, lease, cancel)
	}
	return x
}

// watch cancels ctx with cause ErrLeaseLost when the lease is lost.
func watch(ctx context.Context, lease Lease, cancel context.CancelCauseFunc) {
	select {
	case <-lease.Done():
		if lease.Err() != nil {
			cancel(ErrLeaseLost)
		}
	case <-ctx.Done():
	}
}

// Err is that of the context. It asks the lease first, so it tells of a loss even if Done is
// late, after the machine was suspended.
func (x *execution) Err() error {
	if x.lease != nil && x.lease.Err() != nil {
		x.cancel(ErrLeaseLost)
	}
	return x.Context.Err()
}

// end is called when the handler has returned.
func (x *execution) end() {
	x.ended.Store(true)
	x.cancel(context.Canceled)
}

type executionKey struct{}

// carriedKey is the string that stands for executionKey in contexts that find
// string keys only.
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

// ExecutionValue returns the execution that ctx belongs to as a value under a string
// key. It is for adapters of frameworks whose own context finds string keys only:
// the functions of this package accept such a context once it holds the value.
// The value is nil outside of an execution.
func ExecutionValue(ctx context.Context) (key string, value any) {
	if x := executionOf(ctx); x != nil {
		return carriedKey, x
	}
	return carriedKey, nil
}

// FromContext returns the execution that ctx belongs to, and false outside of
// one. It goes on telling of an execution that has ended.
func FromContext(ctx context.Context) (Execution, bool) {
	x := executionOf(ctx)
	if x == nil {
		return Execution{}, false
	}
	e := Execution{KeyID: x.of.id, OperationID: x.of.id.OperationID(), Attempt: x.attempt.Number}
	if x.lease != nil {
		e.Fence = x.lease.Fence()
	}
	return e, true
}

// CheckOwner is the gate to call right before an irreversible send. It
// confirms that this execution still holds its lock, asking the lock service
// where the last confirmation is older than a quarter of the session, and
// returns how long that can be relied upon from now: the send has to be over
// by then, and before the handler returns. On any error do not send. The error
// wraps ErrLeaseLost, ErrUnavailable, ErrNoExecution, ErrExecutionEnded or the
// error of ctx or of the handler's own context.
//
// A send cannot be taken back: after CheckOwner, a refusal such as 429 is no
// longer taken for "nothing happened".
func CheckOwner(ctx context.Context) (time.Duration, error) {
	x, err := gate(ctx)
	if err != nil {
		return 0, err
	}
	if x.lease == nil {
		return 0, ErrUnavailable
	}
	if x.Err() != nil && x.lease.Err() == nil {
		return 0, context.Cause(x)
	}
	if ctx.Done() == nil { // Gin's context, for one, does not end with the execution's
		ctx = x
	}
	return x.lease.Check(ctx)
}

// DownstreamKey derives the idempotency key to send to another system, called
// name, on behalf of this execution: the same for every attempt, another one
// for every name, and none that tells the caller's key. The error is
// ErrNoExecution or ErrExecutionEnded, and the key is "" then: do not send. Like
// [CheckOwner] it marks the attempt as one that may have had effects.
func DownstreamKey(ctx context.Context, name string) (string, error) {
	x, err := gate(ctx)
	if err != nil {
		return "", err
	}
	return downstreamKey(x.of.id.OperationID(), name), nil
}

// gate returns the execution that ctx belongs to, marked as one that may have
// had effects. Once it has ended there is an error and an event.
func gate(ctx context.Context) (*execution, error) {
	x := executionOf(ctx)
	if x == nil {
		return nil, ErrNoExecution
	}
	// The mark comes first: either the engine sees it when the handler has
	// returned, or the execution is seen to have ended here.
	x.gated.Store(true)
	if x.ended.Load() {
		x.engine.observe(ctx, x.of, Event{Type: EventTooLate, Attempt: x.attempt, Err: ErrExecutionEnded})
		return nil, ErrExecutionEnded
	}
	return x, nil
}

// NoEffect declares that this execution had no effect and will have none,
// whatever it answers: the key is released and a repeat runs afresh. It does
// nothing outside of an execution, nor once that has ended.
func NoEffect(ctx context.Context) {
	if x := executionOf(ctx); x != nil && !x.ended.Load() {
		x.noEffect.Store(true)
	}
}
