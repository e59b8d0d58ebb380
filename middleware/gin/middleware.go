package idemgin

import (
	"context"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// New returns middleware that protects the handlers after it, on every unsafe method.
// [WithMethods] chooses other methods. A policy without a Name gets the method
// and [gin.Context.FullPath].
//
// New returns an error for wrong wiring, such as no engine, no scope, or a header of one
// exchange among those to replay.
func New(engine *idem.Engine, policy idem.Policy, opts ...Option) (gin.HandlerFunc, error) {
	rt, err := newRoute(engine, policy, opts)
	if err != nil {
		return nil, err
	}
	return rt.serve, nil
}

// Middleware is [New] for known-good wiring. Like [regexp.MustCompile] it panics where
// New returns an error.
func Middleware(engine *idem.Engine, policy idem.Policy, opts ...Option) gin.HandlerFunc {
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
func StatusHandler(engine *idem.Engine, policy idem.Policy, opts ...Option) gin.HandlerFunc {
	rt := adapter.Must(newRoute(engine, policy, opts))
	return func(c *gin.Context) { rt.Status(rt.call(c)) }
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// The handler uses the policy's Scope. The route for these tokens has to use the same.
// ttl 0 stands for [idem.DefaultTokenTTL]. Like [Middleware] it panics on a wiring error.
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, opts ...Option) gin.HandlerFunc {
	rt := adapter.Must(newRoute(engine, policy, opts))
	if ttl < 0 {
		panic(fmt.Errorf("idemgin: tokens for %v", ttl))
	}
	return func(c *gin.Context) { rt.IssueToken(rt.call(c), ttl) }
}

// WriteRefusal answers with a refusal as the middleware does by default, and aborts the
// chain. The answer has a status, Retry-After, and a problem (RFC 9457) with the code.
// Handlers can refuse in the same format, and so can a function of [WithRefusals] for
// refusals it does not change. It uses [WithDocumentation] only. The client does not see r.Err. A handler
// that answers with a refusal leaves its own outcome in doubt.
func WriteRefusal(c *gin.Context, r *idem.Refusal, opts ...Option) {
	c.Abort()
	exchange.WriteRefusal(c.Writer, r, collect(opts).Documentation)
}

// route is an exchange with the options of Gin.
type route struct {
	*exchange.Route
	options
}

func newRoute(engine *idem.Engine, policy idem.Policy, opts []Option) (*route, error) {
	rt := &route{options: collect(opts)}
	if rt.scope != nil {
		policy.Scope = func(ctx context.Context) (string, error) { return rt.scope(ctx.(scopeContext).gin) }
	}
	err := checkGin()
	if err == nil {
		rt.Route, err = exchange.New(engine, policy, rt.Config)
	}
	if err != nil {
		return nil, fmt.Errorf("idemgin: %w", err)
	}
	return rt, nil
}

// serve runs the rest of the chain inside of the exchange. If the exchange has an answer
// without it, the chain is aborted.
func (rt *route) serve(c *gin.Context) {
	outer, request := c.Writer, c.Request
	defer func() { c.Writer, c.Request = outer, request }()
	var inner *writer
	var own *diversion
	var first *rerun
	errs := len(c.Errors)
	call := rt.call(c)
	call.Early = func() { own.end() }
	call.Next = func(w *exchange.Writer, r *http.Request) {
		run, handle := c, c.Next
		if first != nil {
			run, handle = first.again()
			defer first.keep(run)
		} else if rt.rerun {
			first = newRerun(c, rt.serve)
		}
		inner = newWriter(w, run, outer)
		inner.rerun = run != c
		own = divert(run, inner)
		run.Writer, run.Request = inner, r
		defer carry(r.Context(), run)()
		defer own.end()
		handle()
		for _, err := range run.Errors[min(errs, len(run.Errors)):] {
			idem.ReportFailure(r.Context(), err.Err)
		}
		inner.finish()
		if answeredAlone(run, inner) {
			w.Doubt(errReplaced)
		}
	}
	if !rt.Serve(call) {
		carry(request.Context(), c)
		return // Gin runs the rest
	}
	if inner == nil {
		c.Abort()
	}
	if inner == nil || inner.Written() {
		outer.WriteHeaderNow()
	}
}

// call describes a request to the exchange.
func (rt *route) call(c *gin.Context) exchange.Call {
	call := exchange.Call{Writer: c.Writer, Request: c.Request, ScopeContext: scopeContext{c.Request.Context(), c}, Repeatable: rt.rerun}
	call.Misplaced = func() error { return misplaced(c) }
	if kept, ok := c.Get(gin.BodyBytesKey); ok { // by c.ShouldBindBodyWith
		call.Kept, _ = kept.([]byte)
	}
	if path := c.FullPath(); path != "" {
		call.Route = c.Request.Method + " " + path
	} else {
		call.Unrouted = true
	}
	if rt.operation != nil {
		call.Operation = rt.operation(c)
	}
	if rt.refusals != nil {
		outer, request := c.Writer, c.Request
		call.Refuse = func(w *exchange.Writer, r *idem.Refusal) {
			c.Writer, c.Request = outer, request // the handlers may have run with others
			c.Writer = newWriter(w, c, outer)
			defer func() { c.Writer = outer }()
			c.Abort() // a hook that calls c.Next must not run them
			c.Status(r.Code.HTTPStatus())
			rt.refusals(c, r)
		}
	}
	return call
}

// carry puts the execution of ctx into c, because [gin.Context.Value] may find string
// keys only. restore puts the outer execution back, if there is one. Otherwise c keeps
// this one, so that a goroutine with c is told that its execution has ended.
func carry(ctx context.Context, c *gin.Context) (restore func()) {
	key, x := idem.ExecutionValue(ctx)
	if x == nil {
		return func() {}
	}
	outer, nested := c.Get(key)
	c.Set(key, x)
	return func() {
		if nested {
			c.Set(key, outer)
		}
	}
}

// scopeContext is the request's context. Value also finds the values of c.Set, and the
// Gin context itself under [gin.ContextKey].
type scopeContext struct {
	context.Context
	gin *gin.Context
}

func (s scopeContext) Value(key any) any {
	if key == gin.ContextKey {
		return s.gin
	}
	if v, ok := s.gin.Get(key); ok {
		return v
	}
	return s.Context.Value(key)
}

// Option changes the middleware and the handlers of this package. A nil option is
// ignored.
type Option func(*options)

type options struct {
	exchange.Config
	scope     func(*gin.Context) (string, error)
	operation func(*gin.Context) string
	refusals  func(*gin.Context, *idem.Refusal)
	rerun     bool
}

func collect(opts []Option) (o options) {
	adapter.Apply(&o, opts)
	return o
}

// WithScope finds the scope of a key. It replaces [idem.Policy].Scope and follows
// [idem.ScopeFunc]. An error, or "", refuses the request as internal.
func WithScope(fn func(*gin.Context) (string, error)) Option {
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
func WithOperation(fn func(*gin.Context) string) Option {
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
// method go straight to the handlers, with or without a key. GET does not stand for HEAD.
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
func WithRefusals(fn func(c *gin.Context, r *idem.Refusal)) Option {
	return func(o *options) { o.refusals = fn }
}

// WithRerun lets [idem.WithConflictRetries] run the handler of a route again, after its joined
// transaction met a conflict. Gin cannot run a chain twice. So only the last handler of the chain
// runs again, without the middleware between this one and that. Without the option the client
// gets the handler's answer, or unavailable, and retries.
func WithRerun() Option {
	return func(o *options) { o.rerun = true }
}

// WithStatusPolicy tells [StatusHandler] whether a route resolves its doubts. It is for
// routes with another policy than the handler's. The route has the form in which its middleware
// names it, and can be of any transport. The policy's Name replaces it. The last policy
// for a route counts. [Middleware] and [TokenHandler] ignore the option.
func WithStatusPolicy(route string, policy idem.Policy) Option {
	return func(o *options) { o.StatusPolicies = append(o.StatusPolicies, policy.ForRoute(route)) }
}
