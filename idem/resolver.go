package idem

import "context"

// Resolver is the application's knowledge of an outcome in doubt, usually a
// look-up by operation ID. It runs while the engine holds the operation's
// lock; [FromContext] gives it the fence of that lease.
//
// NotApplied promises that the effect has not happened and can no longer
// happen. A resolver that only looks cannot promise that: a holder that was
// paused may write right after the look. So it first raises the fence that the
// resource keeps for the operation to its own, in one transaction with the
// look, and the effect's own transaction is refused when it finds a higher
// one. Where the effect cannot be fenced, the answer is StillUnknown.
//
// An error, a panic or a time-out counts as StillUnknown.
type Resolver func(ctx context.Context, in Interrupted) (Resolution, error)

// Interrupted is an attempt whose outcome is in doubt.
type Interrupted struct {
	KeyID       KeyID
	OperationID string
	Route       string    // name of the policy under which it ran
	Attempt     Attempt   // the attempt in doubt
	Fence       Fence     // of the lease the resolver runs under
	Response    *Response // what the attempt answered, where it got so far; else nil
}

// Resolution is what a [Resolver] found. The zero value is StillUnknown.
type Resolution struct {
	verdict  verdict
	response *Response
}

type verdict uint8

const (
	stillUnknown verdict = iota
	applied
	notApplied
)

// Applied says that the attempt took effect; repeats get the response.
func Applied(r Response) Resolution { return Resolution{verdict: applied, response: &r} }

// NotApplied says that the attempt did not take effect and no longer can; the
// operation may run again.
func NotApplied() Resolution { return Resolution{verdict: notApplied} }

// StillUnknown says that nobody can tell yet.
func StillUnknown() Resolution { return Resolution{} }

// InDoubt is how a route treats an outcome in doubt. Make it with [LeaveUnknown],
// [AskResolver] or [RunAgain]; the zero value is LeaveUnknown.
type InDoubt struct {
	resolver Resolver
	again    bool
}

// LeaveUnknown leaves an outcome in doubt unknown until an operator decides.
func LeaveUnknown() InDoubt { return InDoubt{} }

// AskResolver has a resolver settle outcomes in doubt. Without one it is LeaveUnknown.
func AskResolver(r Resolver) InDoubt { return InDoubt{resolver: r} }

// RunAgain runs the handler again without asking. It is for operations that are
// idempotent by themselves and for nothing else.
//
// The key stays bound to its request: the next attempt starts from the one in
// doubt in one step, and it ends as completed or unknown. A refusal such as 429
// and [NoEffect] leave it unknown, because the earlier attempt may have had an
// effect. Where no request comes again, the sweeper releases the key once the last
// attempt is older than Policy.KeyTTL.
func RunAgain() InDoubt { return InDoubt{again: true} }

// Resolver is the resolver to ask; nil where there is none.
func (d InDoubt) Resolver() Resolver { return d.resolver }

// RunsAgain reports whether the handler runs again without asking.
func (d InDoubt) RunsAgain() bool { return d.again }

// unanswered reports whether only an operator can settle an outcome in doubt.
func (d InDoubt) unanswered() bool { return d.resolver == nil && !d.again }
