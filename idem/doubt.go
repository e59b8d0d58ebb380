package idem

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
