package idem

import (
	"context"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Resolver is the knowledge of the application about an outcome in doubt, usually a look-up by
// operation ID. It runs while the engine holds the lock of the operation. [FromContext] gives
// it the fence of that lease.
//
// NotApplied promises that the effect has not happened and can no longer happen. A resolver
// that only looks cannot promise this, because a paused holder may write right after the look.
// So the resolver first raises the fence of the operation at the resource to its own, in one
// transaction with the look. The transaction of the effect is refused if it finds a higher
// fence. If the effect cannot be fenced, the answer is StillUnknown.
//
// An error, a panic or a time-out counts as StillUnknown.
type Resolver func(ctx context.Context, in Interrupted) (Resolution, error)

// Interrupted is an attempt whose outcome is in doubt.
type Interrupted struct {
	KeyID       driver.KeyID
	OperationID string
	Route       string         // name of its policy
	Attempt     driver.Attempt // the attempt in doubt
	Fence       driver.Fence   // of the lease of the resolver; zero in joined mode
	Response    *Response      // the answer of the attempt, or nil
}

// Resolution is the finding of a [Resolver]. The zero value is StillUnknown.
type Resolution struct {
	verdict  verdict
	response *driver.Response
}

type verdict uint8

const (
	stillUnknown verdict = iota
	applied
	notApplied
)

// Applied says that the attempt took effect. Repeats get the response.
func Applied(r Response) Resolution {
	return Resolution{verdict: applied, response: (*driver.Response)(&r)}
}

// NotApplied says that the attempt did not take effect and no longer can. The operation may run
// again.
func NotApplied() Resolution { return Resolution{verdict: notApplied} }

// StillUnknown says that the outcome is not known yet.
func StillUnknown() Resolution { return Resolution{} }

// InDoubt is how a route treats an outcome in doubt. Make it with [LeaveUnknown], [AskResolver]
// or [RunAgain]. The zero value is no choice. An engine from [New] refuses a policy without one. An
// engine from [NewJoined] treats it as LeaveUnknown, because its transaction leaves no outcome in doubt.
type InDoubt struct {
	chosen   bool
	resolver Resolver
	again    bool
}

// LeaveUnknown leaves an outcome in doubt unknown until an operator decides.
func LeaveUnknown() InDoubt { return InDoubt{chosen: true} }

// AskResolver lets a resolver settle outcomes in doubt. A nil resolver means LeaveUnknown.
func AskResolver(r Resolver) InDoubt { return InDoubt{chosen: true, resolver: r} }

// RunAgain runs the handler again without asking. Use it only for operations that are
// idempotent by themselves.
//
// The key stays bound to its request. The next attempt starts from the one in doubt in one
// step, and it ends as completed or unknown. A refusal such as 429 and [NoEffect] leave it
// unknown, because the earlier attempt may have had an effect. After Policy.MaxRuns attempts the
// outcome stays unknown until an operator decides. If the client never repeats the request, the
// sweeper releases the key after the last attempt is older than its route's KeyTTL.
func RunAgain() InDoubt { return InDoubt{chosen: true, again: true} }

// Resolver is the resolver to ask, or nil.
func (d InDoubt) Resolver() Resolver { return d.resolver }

// RunsAgain reports whether the handler runs again without asking, up to [Policy].MaxRuns times.
func (d InDoubt) RunsAgain() bool { return d.again }
