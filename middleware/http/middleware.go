package idemhttp

import (
	"context"
	"fmt"
	"net/http"
	"reflect"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// New returns middleware that protects the handlers it wraps, on every unsafe method.
// [WithMethods] chooses other methods. A policy without a Name gets the matching pattern
// of [http.ServeMux] if the middleware is inside the mux, and else the method. Right around a
// ServeMux the middleware leaves requests alone for which the mux has no route.
//
// New returns an error for wrong wiring, such as no engine, no scope, or a header of one
// exchange among those to replay.
func New(engine *idem.Engine, policy idem.Policy, opts ...Option) (func(http.Handler) http.Handler, error) {
	rt, err := newRoute(engine, policy, opts)
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
			c := rt.call(w, r)
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

// Middleware is [New] for known-good wiring. Like [regexp.MustCompile] it panics where
// New returns an error.
func Middleware(engine *idem.Engine, policy idem.Policy, opts ...Option) func(http.Handler) http.Handler {
	return adapter.Must(New(engine, policy, opts...))
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
// The handler uses the policy's Scope. The route for these tokens has to use the same.
// ttl 0 stands for [idem.DefaultTokenTTL]. Like [Middleware] it panics on a wiring error.
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, opts ...Option) http.Handler {
	rt := adapter.Must(newRoute(engine, policy, opts))
	if ttl < 0 {
		panic(fmt.Errorf("idemhttp: tokens for %v", ttl))
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { rt.IssueToken(rt.call(w, r), ttl) })
}

// WriteRefusal answers with a refusal as the middleware does by default, with
// status, Retry-After, and a problem (RFC 9457) with the code. Handlers and other middleware
// can refuse in the same format, and so can a function of [WithRefusals] for refusals it
// does not change. It uses [WithDocumentation] only. The client does not see r.Err. A
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
	c := exchange.Call{Writer: w, Request: r, Route: r.Pattern, Repeatable: true}
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

// Option changes the middleware and the handlers of this package. A nil option is
// ignored.
type Option func(*options)

type options struct {
	exchange.Config
	scope     func(*http.Request) (string, error)
	operation func(*http.Request) string
	refusals  func(http.ResponseWriter, *http.Request, *idem.Refusal)
}

func collect(opts []Option) (o options) {
	adapter.Apply(&o, opts)
	return o
}

// WithScope finds the scope of a key in the request itself, if authentication leaves no
// principal in the context. It replaces [idem.Policy].Scope and follows
// [idem.ScopeFunc]. An error, or "", refuses the request as internal.
func WithScope(fn func(*http.Request) (string, error)) Option {
	return func(o *options) { o.scope = fn }
}

// WithHeader names the request header with the key. The default is Idempotency-Key.
func WithHeader(name string) Option {
	return func(o *options) { o.Header = name }
}

// WithReplayHeaders adds response headers to store and replay. Cookies,
// credentials, Date and hop-by-hop headers are a wiring error.
func WithReplayHeaders(names ...string) Option {
	return func(o *options) { o.Replay = append(o.Replay, names...) }
}

// WithOperation says what a request does, for its fingerprint. It is for operations with
// several routes. The default, also for "", is method and escaped path.
func WithOperation(fn func(*http.Request) string) Option {
	return func(o *options) { o.operation = fn }
}

// WithComparedHeaders makes request headers part of the request. A request with the
// same key and another value is refused as key-reused. "Host" stands for the host. By
// default only Content-Type and Content-Encoding are compared.
func WithComparedHeaders(names ...string) Option {
	return func(o *options) { o.Compare = append(o.Compare, names...) }
}

// WithMethods lists the methods that need a key. The default is all methods except GET,
// HEAD, OPTIONS and TRACE, which are safe (RFC 9110, section 9.2.1). Requests of another
// method go straight to the handler, with or without a key. GET does not stand for
// HEAD, although [http.ServeMux] routes HEAD to the handlers of GET.
func WithMethods(methods ...string) Option {
	return func(o *options) { o.Methods = append([]string{}, methods...) }
}

// WithOptionalKey lets requests without a key through to the handler. It then runs
// outside of an execution, where [idem.CheckOwner] and [idem.DownstreamKey] return
// [idem.ErrNoExecution]. Each such request is reported as [telemetry.EventUnprotected]. A
// malformed key is refused all the same. On a route for issued tokens the option is a
// wiring error.
func WithOptionalKey() Option {
	return func(o *options) { o.OptionalKey = true }
}

// WithDocumentation names the page about keys for clients, as an absolute URI or a path on
// this server. Refusals then have a problem type and a Link header
// (draft-ietf-httpapi-idempotency-key-header-07, section 2.7). Both are the URI with the
// code as its fragment. By default refusals have neither.
func WithDocumentation(uri string) Option {
	return func(o *options) { o.Documentation = uri }
}

// WithStreaming sends every response that the handler flushes as it is written. Repeats then get
// result-unavailable. Without the option only text/event-stream is sent so. Any other response is
// kept, flushed or not, so that a repeat gets it. An engine from [idem.NewJoined] sends no part of
// a response early in any case, and refuses to flush a stream ([http.ErrNotSupported]).
func WithStreaming() Option {
	return func(o *options) { o.Streaming = true }
}

// WithRefusals has fn write refusals in the format of the application's other errors.
// fn uses r.Code with its status, its title, and r.Detail(). Retry-After and
// Cache-Control are set already. The status is that of the code unless fn sets another
// one. r.Err is not for clients. If fn writes nothing, the default format takes its
// place.
//
// A calling service recognises refusals of the default format only, by their problem+json.
func WithRefusals(fn func(w http.ResponseWriter, req *http.Request, r *idem.Refusal)) Option {
	return func(o *options) { o.refusals = fn }
}

// WithStatusPolicy tells [StatusHandler] whether a route resolves its doubts. It is for
// routes with another policy than the handler's. The route has the form in which its middleware
// names it, and can be of any transport. The policy's Name replaces it. The last policy
// for a route counts. [Middleware] and [TokenHandler] ignore the option.
func WithStatusPolicy(route string, policy idem.Policy) Option {
	return func(o *options) { o.StatusPolicies = append(o.StatusPolicies, policy.ForRoute(route)) }
}
