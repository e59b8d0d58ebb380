package idem

import (
	"cmp"
	"context"
	"fmt"
	"time"
)

// Defaults of a [Policy].
const (
	DefaultResultTTL       = 24 * time.Hour
	DefaultKeyTTL          = 7 * 24 * time.Hour
	DefaultTokenTTL        = 15 * time.Minute
	DefaultResolverTimeout = 5 * time.Second
	DefaultMaxRequestBody  = 1 << 20 // bytes
	DefaultMaxResponseBody = 1 << 20 // bytes

	DefaultMaxResponseInDoubt = 64 << 10 // bytes
)

// ScopeFunc tells whose key a request carries: the tenant or principal, as
// authentication that ran before has left it in ctx. It never returns "".
// An error, or "", refuses the request as internal: authentication that lets a
// request through without a principal is a fault of the server.
type ScopeFunc func(ctx context.Context) (string, error)

// Policy is how one route treats keys. Every field but the scope has a safe
// default, which counts where the field is zero.
type Policy struct {
	// Scope finds the scope of a request in its context. It is asked where the
	// request's scope is not given: by [Operation].Scope, or by an adapter's
	// WithScope. Adapters refuse a policy without either, unless AllowGlobalKeys.
	Scope ScopeFunc
	// AllowGlobalKeys lets all callers share one key space. Whoever guesses a
	// key is then given its stored response.
	AllowGlobalKeys bool
	// Kind is ClientKey by default.
	Kind KeyKind
	// KeyFormat narrows down the keys that are accepted. A key of another format
	// is refused as key-invalid, and nothing is touched. By default every key is.
	KeyFormat KeyFormat
	// Name is kept with the record, so that an interrupted one is matched with
	// this policy's InDoubt; at most 255 bytes. Adapters fill in the route.
	Name string
	// DuplicateWait is how long a duplicate waits for the first request before it is
	// refused as in progress. 0 by default: not at all.
	DuplicateWait time.Duration
	// HandlerTimeout cancels the handler's context; the outcome is settled when the
	// handler has returned, however late. 0 by default: none.
	HandlerTimeout time.Duration
	// ResultTTL is for how long a completed response is replayed;
	// DefaultResultTTL where 0.
	ResultTTL time.Duration
	// KeyTTL is for how long the key itself is remembered; DefaultKeyTTL where
	// 0, and never less than ResultTTL.
	KeyTTL time.Duration
	// InDoubt is what becomes of an outcome in doubt: [LeaveUnknown] by default,
	// [AskResolver] or [RunAgain].
	InDoubt InDoubt
	// ResolverTimeout bounds one call of the resolver that InDoubt asks;
	// DefaultResolverTimeout where 0.
	ResolverTimeout time.Duration
	// FailOpen runs the handler without protection where the lock or the store
	// cannot be reached, unless an attempt was seen that runs or is in doubt.
	// It can execute twice. Every such run is reported as EventFailedOpen. A
	// store that lost its records still refuses.
	FailOpen bool
	// MaxRequestBody bounds the request that is read into memory for its
	// fingerprint, in bytes; DefaultMaxRequestBody where 0.
	MaxRequestBody int64
	// MaxResponseBody bounds the response that is kept for replay, in bytes;
	// DefaultMaxResponseBody where 0. A longer one reaches the client, and
	// repeats are told that the result is unavailable.
	MaxResponseBody int64
	// MaxResponseInDoubt bounds the response that is kept with an unknown outcome,
	// header and body together, in bytes; DefaultMaxResponseInDoubt where 0. Such
	// a record stays until somebody decides, so that many of them must not fill
	// the store. A longer response reaches the client, and repeats are told that
	// the outcome is unknown.
	MaxResponseInDoubt int64

	unnamed bool // Name is only the route's: see ForRoute
}

// ForRoute is for adapters. It returns the policy with its Name, where it has
// none, being the route, cut off at 255 bytes.
func (p Policy) ForRoute(route string) Policy {
	if p.Name == "" {
		p.Name, p.unnamed = route[:min(len(route), 255)], true
	}
	return p
}

// WithDefaults returns the policy with its defaults filled in, or an error
// that says what is wrong with it. Adapters call it when a route is set up; the
// methods of [Engine] do the same with a policy that has not been through it.
func (p Policy) WithDefaults() (Policy, error) {
	if p.Scope == nil && !p.AllowGlobalKeys {
		return p, fmt.Errorf("idem: policy %q has no Scope: set one, or AllowGlobalKeys", p.Name)
	}
	filled, err := p.complete()
	return *filled, err
}

// complete returns a checked copy of the policy with its defaults. The policy needs no Scope,
// because a call of the engine has one of its own.
func (p Policy) complete() (*Policy, error) {
	err := p.check()
	p.fill()
	return &p, err
}

// check says what is wrong with the fields that have no use for a default.
func (p *Policy) check() error {
	if p.Kind > IssuedToken {
		return fmt.Errorf("idem: policy %q has an unknown Kind %d", p.Name, p.Kind)
	}
	if p.FailOpen && p.Kind == IssuedToken {
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
	if min(p.MaxRequestBody, p.MaxResponseBody, p.MaxResponseInDoubt) < 0 {
		return fmt.Errorf("idem: policy %q has a negative body limit", p.Name)
	}
	return nil
}

// fill sets each field that is zero to its default.
func (p *Policy) fill() {
	p.ResultTTL = cmp.Or(p.ResultTTL, DefaultResultTTL)
	p.KeyTTL = max(cmp.Or(p.KeyTTL, DefaultKeyTTL), p.ResultTTL)
	p.ResolverTimeout = cmp.Or(p.ResolverTimeout, DefaultResolverTimeout)
	p.MaxRequestBody = cmp.Or(p.MaxRequestBody, DefaultMaxRequestBody)
	p.MaxResponseBody = cmp.Or(p.MaxResponseBody, DefaultMaxResponseBody)
	p.MaxResponseInDoubt = cmp.Or(p.MaxResponseInDoubt, DefaultMaxResponseInDoubt)
}

// ScopeOf asks Scope, and holds its answer to its contract. Without a Scope it is
// "" where the policy allows global keys. The error is a [*Refusal].
func (p *Policy) ScopeOf(ctx context.Context) (string, error) {
	if p.Scope == nil {
		if !p.AllowGlobalKeys {
			return "", refuse(CodeInternal, fmt.Errorf("idem: policy %q: operation without scope", p.Name))
		}
		return "", nil
	}
	scope, err := p.Scope(ctx)
	if err != nil {
		return "", refuse(CodeInternal, fmt.Errorf("idem: scope: %w", err))
	}
	if scope == "" {
		return "", refuse(CodeInternal, fmt.Errorf("idem: policy %q: empty scope", p.Name))
	}
	return scope, nil
}
