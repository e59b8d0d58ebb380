package idemhttp

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// New returns middleware that protects the handlers it wraps, on every unsafe method.
// [WithMethods] chooses other methods. A policy without a Name gets the matching pattern
// of [http.ServeMux] if the middleware is inside the mux, and else the method.
//
// The error says what is wrong with the wiring: no engine, no scope, a header that
// is never replayed.
func New(engine *idem.Engine, policy idem.Policy, opts ...Option) (func(http.Handler) http.Handler, error) {
	rt, err := newRoute(engine, policy, opts)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c := rt.call(w, r)
			c.Next = func(w *exchange.Writer, r *http.Request) { next.ServeHTTP(w, r) }
			if !rt.Serve(c) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// Middleware is [New] for known-good wiring. Like [regexp.MustCompile] it panics where
// New returns an error.
func Middleware(engine *idem.Engine, policy idem.Policy, opts ...Option) func(http.Handler) http.Handler {
	return adapter.Must(New(engine, policy, opts...))
}

// StatusHandler answers GET with the state of the key in the request's Idempotency-Key
// header, for its owner:
//
//	{"state":"completed","operation_id":"op_…","kind":"client-key","attempt":1,"since":"…","expires_at":"…"}
//
// For an unknown key, and for a key of another caller, it answers {"state":"none"}.
// While the attempt is pending or unknown the answer has "resolver". It is true if an
// interrupted attempt is settled without a person.
//
// The handler uses Scope and InDoubt of the policy. InDoubt applies to the route of the
// policy's Name, or to every route if it has no Name. [WithStatusPolicy] adds routes
// with another InDoubt. Like [Middleware] it panics on a wiring error.
func StatusHandler(engine *idem.Engine, policy idem.Policy, opts ...Option) http.Handler {
	rt := adapter.Must(newRoute(engine, policy, opts))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.Status(rt.call(w, r)) })
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// The handler uses the policy's Scope. The route for these tokens has to use the same. ttl 0 stands for [idem.DefaultTokenTTL]. Like [Middleware] it panics on a
// wiring error.
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, opts ...Option) http.Handler {
	rt := adapter.Must(newRoute(engine, policy, opts))
	if ttl < 0 {
		panic(fmt.Errorf("idemhttp: tokens for %v", ttl))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.IssueToken(rt.call(w, r), ttl) })
}

// WriteRefusal answers with a refusal as the middleware does by default: status,
// Retry-After, and a problem (RFC 9457) with the code. It is for handlers and other
// middleware that refuse in the same format, and for a [WithRefusals] that changes only
// some refusals. It uses [WithDocumentation] only. The client does not see r.Err. A
// handler that answers with a refusal leaves its own outcome in doubt.
func WriteRefusal(w http.ResponseWriter, r *idem.Refusal, opts ...Option) {
	exchange.WriteRefusal(w, r, collect(opts).Documentation)
}

// route is an exchange with the options of net/http.
type route struct {
	*exchange.Route
	options
}

func newRoute(engine *idem.Engine, policy idem.Policy, opts []Option) (*route, error) {
	rt := &route{options: collect(opts)}
	if rt.scope != nil {
		policy.Scope = func(ctx context.Context) (string, error) { return rt.scope(ctx.Value(requestKey{}).(*http.Request)) }
	}
	var err error
	if rt.Route, err = exchange.New(engine, policy, rt.Config); err != nil {
		return nil, fmt.Errorf("idemhttp: %w", err)
	}
	return rt, nil
}

// requestKey is the key of the request in the context for the scope.
type requestKey struct{}

// call describes a request to the exchange.
func (rt *route) call(w http.ResponseWriter, r *http.Request) exchange.Call {
	c := exchange.Call{Writer: w, Request: r, Route: r.Pattern}
	if rt.scope != nil {
		c.ScopeContext = context.WithValue(r.Context(), requestKey{}, r)
	}
	if rt.operation != nil {
		c.Operation = rt.operation(r)
	}
	if rt.refusals != nil {
		c.Refuse = func(w *exchange.Writer, refusal *idem.Refusal) { rt.refusals(w, r, refusal) }
	}
	return c
}
