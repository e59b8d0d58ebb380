package idem

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
)

// Defaults of a [Policy].
const (
	DefaultResultTTL      = 24 * time.Hour
	DefaultKeyTTL         = driver.DefaultKeyTTL
	DefaultTokenTTL       = 15 * time.Minute
	DefaultMaxRequestBody = 1 << 20 // bytes

	defaultResolverTimeout = 5 * time.Second
	defaultMaxResponseBody = 1 << 20  // bytes
	defaultMaxResponseHeld = 16 << 20 // bytes
	defaultMaxRuns         = 10
)

// maxResponseInDoubt bounds the response that is kept with an unknown outcome, header and body
// together, in bytes. Operators and resolvers see it, and clients do not. Such a record stays until
// a decision, and many of them must not fill the store. Of a longer response only the status is kept.
const maxResponseInDoubt = 64 << 10

// ScopeFunc returns the owner of the key of a request, a tenant or principal. It reads that
// from ctx, where the authentication has left it before. An error or "" refuses the request as
// internal. If the authentication lets a request through without a principal, the server has a
// fault.
type ScopeFunc func(ctx context.Context) (string, error)

// ScopeFrom returns a ScopeFunc for an authentication that leaves the owner as a string in the
// context, where ctx.Value(key) finds it. With Gin that is c.Set(key, owner). Without such a
// string the request is refused as internal, and its handler does not run.
func ScopeFrom(key any) ScopeFunc {
	return func(ctx context.Context) (string, error) {
		switch scope := ctx.Value(key).(type) {
		case string:
			return scope, nil
		case nil:
			return "", fmt.Errorf("the context has nothing under %#v: the authentication has to run before the middleware, and to leave the owner there", key)
		default:
			return "", fmt.Errorf("the context has no string under %#v, but a value of type %T: give Policy.Scope a function that makes a string of it", key, scope)
		}
	}
}

// Policy is how one route treats keys. Every field except the scope has a safe default for its
// zero value.
type Policy struct {
	// Scope finds the scope of a request in its context. The engine asks it unless
	// [Operation].Scope or the config of an adapter gives the scope. Adapters refuse a policy
	// with neither, unless it has AllowGlobalKeys.
	Scope ScopeFunc
	// AllowGlobalKeys lets all callers share one key space. A caller that guesses a key then
	// gets its stored response.
	AllowGlobalKeys bool
	// IssuedTokens says that the keys of the route are one-time tokens from [Engine.IssueToken].
	// Their first use consumes them, and every other key is refused. Otherwise clients make up
	// their keys.
	IssuedTokens bool
	// KeyFormat narrows down the accepted keys. The engine refuses any other key as key-invalid
	// and touches nothing. By default it accepts every key.
	KeyFormat KeyFormat
	// Name is kept with the record. The sweeper finds the InDoubt of an interrupted record by
	// this name. It has at most 255 bytes. Adapters fill in the route.
	Name string
	// DuplicateWait is how long a duplicate waits for the first request, before the engine
	// refuses it as in progress. The default is 0, no wait. A duplicate keeps the body of its
	// request while it waits, so [WithMaxWaiting] bounds how many wait.
	DuplicateWait time.Duration
	// HandlerTimeout cancels the context of the handler. The engine settles the outcome after
	// the handler has returned, however late. The default is 0, no time-out.
	HandlerTimeout time.Duration
	// ResultTTL is how long a completed response is replayed. The default is DefaultResultTTL.
	ResultTTL time.Duration
	// KeyTTL is how long the key itself is remembered. The default is DefaultKeyTTL. It is
	// never less than ResultTTL. The record has both from the begin of the attempt on, and
	// whoever settles the attempt keeps the longer of the record's and its own.
	KeyTTL time.Duration
	// InDoubt is how the route treats an outcome in doubt, by [LeaveUnknown], [AskResolver] or
	// [RunAgain]. An engine from [New] refuses a policy that does not choose. After a crash, and after
	// an answer such as 500, the engine does not know whether the handler's effect has happened. It
	// then never runs the handler again by itself.
	InDoubt InDoubt
	// StatusesInDoubt are final answers of the handler that leave the outcome in doubt on this route,
	// as HTTP statuses or gRPC codes. A gateway writes 409 for gRPC's ABORTED, for example. The
	// client then gets outcome-unknown, and the answer is kept for the operator. Answers that are in
	// doubt by themselves need no entry, and a success cannot have one.
	StatusesInDoubt []int
	// MaxRuns bounds the attempts of one key on a route with [RunAgain]. The attempt of this
	// number is the last one that starts from an outcome in doubt. If it ends in doubt too, the
	// outcome is unknown until an operator decides. All attempts in the record count, also those
	// without effect. The default is 10.
	MaxRuns int
	// ResolverTimeout bounds one call of the resolver in InDoubt. The default is
	// 5 s.
	ResolverTimeout time.Duration
	// CallsOtherSystems says that the handler calls other systems, such as a bank, while its
	// joined transaction is open. A rollback does not undo such a call. So an engine from
	// [NewJoined] first commits which request the key stands for, and refuses any other request
	// with it as key-reused for KeyTTL, even if every attempt was rolled back. In joined mode
	// [DownstreamKey] returns ErrUndeclared without it. Other engines ignore it.
	CallsOtherSystems bool
	// GateFirst states that the handler has no effect before it passes the gate ([CheckOwner] or
	// [DownstreamKey]). Then its 400, 415 or 422 (INVALID_ARGUMENT in gRPC) from before the gate leaves the
	// key free, and the corrected request runs with it. After [FromContext], which gives the fence, it does not. If the statement is
	// false, a handler that has paid and then answers 422 leaves the key free, and the next request pays
	// again. An engine from [NewJoined] ignores it, and goes by whether the handler has taken its transaction.
	GateFirst bool
	// FailOpen runs the handler without protection if the lock or the store cannot be reached.
	// It does not apply after the engine has seen an attempt that runs or is in doubt. The
	// operation may run twice. Every such run is reported as EventFailedOpen. A store that lost
	// its records still refuses. An engine from [NewJoined] ignores it, because the handler has
	// no transaction without the store.
	FailOpen bool
	// MaxRequestBody bounds the request in bytes, because the fingerprint needs it in memory.
	// The default is DefaultMaxRequestBody.
	MaxRequestBody int64
	// MaxResponseBody bounds the response in bytes for a replay. A longer one reaches the
	// client, and repeats get result-unavailable. The default is 1 MiB.
	MaxResponseBody int64
	// MaxResponseHeld bounds the response that an adapter holds in memory, in bytes, if no part
	// of it may reach the client before the outcome is settled. That is so with an engine from
	// [NewJoined], and where a response could not be broken off. The body of a longer one is
	// dropped. A success is then answered as result-unavailable, at the first request already.
	// The default is 16 MiB. It is never less than MaxResponseBody.
	MaxResponseHeld int64

	// Require is what the route needs, such as [guarantee.ExactlyOnceInTransaction]. Where lock,
	// store and policy give less, adapters refuse the wiring with what is missing and what would
	// supply it. Two requirements on one Name are refused, too. The default is nothing.
	Require guarantee.Need

	unnamed     bool    // Name comes from ForRoute
	optionalKey bool    // see KeyOptional
	route       *wiring // of Engine.Fit
}

// ForRoute is for adapters. If the policy has no Name, it gets the route as its Name, cut off
// at 255 bytes.
func (p Policy) ForRoute(route string) Policy {
	if p.Name == "" {
		p.Name, p.unnamed = route[:min(len(route), 255)], true
		p.route.serves(p.Name)
	}
	return p
}

// KeyOptional is for adapters, before [Engine.Fit]. It says that requests without a key run, too. The guarantee of the route does not
// cover them.
func (p Policy) KeyOptional() Policy {
	p.optionalKey = true
	return p
}

// WithDefaults returns the policy with its defaults, or an error that says what is wrong with
// it. Adapters call it when they set up a route. The methods of [Engine] do the same with every
// policy.
func (p Policy) WithDefaults() (Policy, error) {
	if p.Scope == nil && !p.AllowGlobalKeys {
		return p, fmt.Errorf("idem: policy %q has no Scope: set one, such as idem.ScopeFrom(\"merchant\"), or AllowGlobalKeys", p.label())
	}
	filled, err := p.complete()
	return *filled, err
}

// label names a policy in errors of its wiring. One without a name is the line of the program that uses it.
func (p *Policy) label() string { return cmp.Or(p.Name, wiredAt()) }

// complete returns a checked copy of the policy with its defaults. The policy needs no Scope,
// because a call of the engine has one of its own.
func (p Policy) complete() (*Policy, error) {
	err := p.check()
	p.fill()
	return &p, err
}

// check says what is wrong with the policy.
func (p *Policy) check() error {
	if p.FailOpen && p.IssuedTokens {
		return fmt.Errorf("idem: policy %q: a route for issued tokens cannot fail open: nothing could tell whether the token was issued", p.Name)
	}
	if err := p.KeyFormat.check(); err != nil {
		return fmt.Errorf("idem: policy %q: %w", p.Name, err)
	}
	if len(p.Name) > 255 {
		return fmt.Errorf("idem: policy name of %d bytes, at most 255", len(p.Name))
	}
	if min(p.DuplicateWait, p.HandlerTimeout, p.ResultTTL, p.KeyTTL, p.ResolverTimeout) < 0 {
		return fmt.Errorf("idem: policy %q has a negative time", p.Name)
	}
	if min(p.MaxRequestBody, p.MaxResponseBody, p.MaxResponseHeld) < 0 {
		return fmt.Errorf("idem: policy %q has a negative body limit", p.Name)
	}
	for _, status := range p.StatusesInDoubt {
		if succeeded(TransportHTTP, status) || status == grpcOK {
			return fmt.Errorf("idem: policy %q has the success %d among StatusesInDoubt", p.Name, status)
		}
	}
	if p.MaxRuns < 0 {
		return fmt.Errorf("idem: policy %q has a negative MaxRuns", p.Name)
	}
	return nil
}

// fill sets each field that is zero to its default.
func (p *Policy) fill() {
	p.ResultTTL = cmp.Or(p.ResultTTL, DefaultResultTTL)
	p.KeyTTL = max(cmp.Or(p.KeyTTL, DefaultKeyTTL), p.ResultTTL)
	p.MaxRuns = cmp.Or(p.MaxRuns, defaultMaxRuns)
	p.ResolverTimeout = cmp.Or(p.ResolverTimeout, defaultResolverTimeout)
	p.MaxRequestBody = cmp.Or(p.MaxRequestBody, DefaultMaxRequestBody)
	p.MaxResponseBody = cmp.Or(p.MaxResponseBody, defaultMaxResponseBody)
	p.MaxResponseHeld = max(cmp.Or(p.MaxResponseHeld, defaultMaxResponseHeld), p.MaxResponseBody)
}

// RunsAgain reports whether the next request of a key runs its handler again if this attempt is
// in doubt.
func (p *Policy) RunsAgain(last driver.Attempt) bool {
	return p.InDoubt.again && int64(last.Number) < int64(cmp.Or(p.MaxRuns, defaultMaxRuns))
}

// kind is the kind of the keys of the route.
func (p *Policy) kind() driver.KeyKind {
	if p.IssuedTokens {
		return driver.IssuedToken
	}
	return driver.ClientKey
}

// settles reports whether an attempt in doubt needs no operator. The policy asks a resolver or
// runs again.
func (p *Policy) settles(last driver.Attempt) bool {
	return p.InDoubt.resolver != nil || p.RunsAgain(last)
}

// ScopeOf asks Scope and checks its answer. Without a Scope it returns "" if the policy allows
// global keys. The error is a [*Refusal].
func (p *Policy) ScopeOf(ctx context.Context) (string, error) {
	if p.Scope == nil {
		if !p.AllowGlobalKeys {
			return "", refuse(CodeInternal, fmt.Errorf("idem: policy %q: operation without scope: set Scope in the policy or in the operation, or AllowGlobalKeys", p.Name))
		}
		return "", nil
	}
	scope, err := p.Scope(ctx)
	if err != nil {
		return "", refuse(CodeInternal, fmt.Errorf("idem: scope: %w", err))
	}
	if scope == "" {
		return "", refuse(CodeInternal, fmt.Errorf("idem: policy %q: empty scope: the authentication has let a request without an owner through", p.Name))
	}
	return scope, nil
}
