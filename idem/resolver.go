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
