package idem

import (
	"context"
	"errors"
	"sync/atomic"
	"time"
)

// ErrNoExecution says that a context is not that of a handler run by an
// [Engine].
var ErrNoExecution = errors.New("idem: not inside an execution")

// Execution is what a handler or a resolver can know of the execution it is
// part of.
type Execution struct {
	KeyID       KeyID
	OperationID string // the same for every attempt
	Attempt     uint32 // 1, 2, …
	Fence       Fence  // to be given to resources that check it; zero where a route failed open
}

// execution is an Execution in progress, and the context in which it runs. It
// ends at a deadline, or as soon as the lease cannot be trusted.
type execution struct {
	bounded           // lease is nil where a route failed open
	of       *request // whose attempt it is
	attempt  uint32
	gated    atomic.Bool
	noEffect atomic.Bool
}

// init makes x the execution of an attempt: under a lease, unless that is nil,
// and for so long, unless limit is zero.
func (x *execution) init(ctx context.Context, r *request, lease Lease, attempt Attempt, limit time.Duration) {
	x.of, x.attempt = r, attempt.Number
	x.Context, x.lease = ctx, lease
	if limit > 0 {
		x.at = time.Now().Add(limit)
	}
}

type executionKey struct{}

// Value knows the execution itself beside what [bounded] knows.
func (x *execution) Value(key any) any {
	if key == (executionKey{}) {
		return x
	}
	return x.bounded.Value(key)
}

func executionOf(ctx context.Context) *execution {
	x, _ := ctx.Value(executionKey{}).(*execution)
	return x
}

// FromContext returns the execution that ctx belongs to, and false outside of
// one.
func FromContext(ctx context.Context) (Execution, bool) {
	x := executionOf(ctx)
	if x == nil {
		return Execution{}, false
	}
	e := Execution{KeyID: x.of.id, OperationID: x.of.id.OperationID(), Attempt: x.attempt}
	if x.lease != nil {
		e.Fence = x.lease.Fence()
	}
	return e, true
}

// CheckOwner is the gate to call right before an irreversible send. It
// confirms that this execution still holds its lock, asking the lock service
// where the last confirmation is older than a quarter of the session, and
// returns how long that can be relied upon from now: the send has to be over
// by then. On any error do not send. The error wraps ErrLeaseLost,
// ErrUnavailable, ErrNoExecution or ctx.Err().
//
// A send cannot be taken back: after CheckOwner, a refusal such as 429 is no
// longer taken for "nothing happened".
func CheckOwner(ctx context.Context) (time.Duration, error) {
	x := executionOf(ctx)
	if x == nil {
		return 0, ErrNoExecution
	}
	x.gated.Store(true)
	if x.lease == nil {
		return 0, ErrUnavailable
	}
	return x.lease.Check(ctx)
}

// DownstreamKey derives the idempotency key to send to another system, called
// name, on behalf of this execution: the same for every attempt, another one
// for every name, and none that tells the caller's key. It returns "" outside
// of an execution. Like [CheckOwner] it marks the attempt as one that may have
// had effects.
func DownstreamKey(ctx context.Context, name string) string {
	x := executionOf(ctx)
	if x == nil {
		return ""
	}
	x.gated.Store(true)
	return downstreamKey(x.of.id.OperationID(), name)
}

// NoEffect declares that this execution had no effect and will have none,
// whatever it answers: the key is released and a repeat runs afresh. It does
// nothing outside of an execution.
func NoEffect(ctx context.Context) {
	if x := executionOf(ctx); x != nil {
		x.noEffect.Store(true)
	}
}
