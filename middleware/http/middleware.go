package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// New returns middleware that protects the handlers it wraps, on every unsafe method. cfg may be left
// out, and there is at most one. A policy without a Name gets the matching pattern of [http.ServeMux]
// if the middleware is inside the mux, and else the method. Right around a ServeMux the middleware
// leaves requests alone for which the mux has no route.
//
// New returns an error for wrong wiring, such as no engine, no scope, or a header of one
// exchange among those to replay.
func New(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (func(http.Handler) http.Handler, error) {
	rt, err := newRoute(engine, policy, cfg, exchange.New)
	if err != nil {
		return nil, err
	}
	return func(next http.Handler) http.Handler {
		mux, _ := next.(*http.ServeMux)
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if unrouted(mux, r) {
				next.ServeHTTP(w, r)
				return
			}
			c := call(w, r)
			c.Next = func(w *exchange.Writer, r *http.Request) { next.ServeHTTP(w, r) }
			if !rt.Serve(c) {
				next.ServeHTTP(w, r)
			}
		})
	}, nil
}

// unrouted reports whether a mux answers a request itself, with 404, 405 or a redirect to the path
// of a route. Such an answer is no outcome. It may be another one after a deployment, or on another
// instance during it.
func unrouted(mux *http.ServeMux, r *http.Request) bool {
	if mux == nil {
		return false
	}
	h, pattern := mux.Handler(r)
	return pattern == "" || reflect.TypeOf(h) == redirects
}

var redirects = reflect.TypeOf(http.RedirectHandler("/", http.StatusTemporaryRedirect))

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) func(http.Handler) http.Handler {
	return adapter.Must(New(engine, policy, cfg...))
}

// StatusHandler answers GET with the state of the key in the request's Idempotency-Key
// header, for its owner. An example:
//
//	{"state":"completed","operation_id":"op_…","kind":"client-key","attempt":1,"since":"…","expires_at":"…"}
//
// For an unknown key, and for a key of another caller, it answers {"state":"none"}.
// While the attempt is pending or unknown the answer has "resolver". It is true if an
// interrupted attempt is settled without a person.
//
// The handler uses Scope and InDoubt of the policy. InDoubt applies to the route of the
// policy's Name, or to every route if it has no Name. StatusPolicies of [exchange.Config] adds
// routes with another InDoubt. The error is for wrong wiring, as that of [New].
func StatusHandler(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (http.Handler, error) {
	rt, err := newRoute(engine, policy, cfg, exchange.NewWithoutHandler)
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.Status(call(w, r)) }), nil
}

// MustStatusHandler is [StatusHandler], and panics where that returns an error.
func MustStatusHandler(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) http.Handler {
	return adapter.Must(StatusHandler(engine, policy, cfg...))
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// The handler uses the policy's Scope. The route for these tokens has to use the same.
// ttl 0 stands for [idem.DefaultTokenTTL]. The error is for wrong wiring, as that of [New].
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, cfg ...exchange.Config) (http.Handler, error) {
	rt, err := newRoute(engine, policy, cfg, exchange.NewWithoutHandler)
	if err == nil && ttl < 0 {
		err = errors.New("idemhttp: the time to live of tokens is negative")
	}
	if err != nil {
		return nil, err
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.IssueToken(call(w, r), ttl) }), nil
}

// MustTokenHandler is [TokenHandler], and panics where that returns an error.
func MustTokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, cfg ...exchange.Config) http.Handler {
	return adapter.Must(TokenHandler(engine, policy, ttl, cfg...))
}

// constructor is exchange.New or exchange.NewWithoutHandler.
type constructor func(*idem.Engine, idem.Policy, ...exchange.Config) (*exchange.Route, error)

func newRoute(engine *idem.Engine, policy idem.Policy, cfg []exchange.Config, construct constructor) (*exchange.Route, error) {
	rt, err := construct(engine, policy, cfg...)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: %w", err)
	}
	return rt, nil
}

// call describes a request to the exchange.
func call(w http.ResponseWriter, r *http.Request) exchange.Call {
	return exchange.Call{Writer: w, Request: r, Route: r.Pattern, RunAgain: true}
}
