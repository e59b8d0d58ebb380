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
// The error says what is wrong with the wiring: no engine, no scope, a header that
// cannot be replayed.
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
func StatusHandler(engine *idem.Engine, policy idem.Policy, opts ...Option) gin.HandlerFunc {
	rt := adapter.Must(newRoute(engine, policy, opts))
	return func(c *gin.Context) { rt.Status(rt.call(c)) }
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// The handler uses the policy's Scope. The route for these tokens has to use the same. ttl 0 stands for [idem.DefaultTokenTTL]. Like [Middleware] it panics on a
// wiring error.
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, opts ...Option) gin.HandlerFunc {
	rt := adapter.Must(newRoute(engine, policy, opts))
	if ttl < 0 {
		panic(fmt.Errorf("idemgin: tokens for %v", ttl))
	}
	return func(c *gin.Context) { rt.IssueToken(rt.call(c), ttl) }
}

// WriteRefusal answers with a refusal as the middleware does by default, and aborts the
// chain: status, Retry-After, and a problem (RFC 9457) with the code. It is for handlers
// that refuse in the same format, and for a [WithRefusals] that changes only some
// refusals. It uses [WithDocumentation] only. The client does not see r.Err. A handler
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
	var err error
	if rt.Route, err = exchange.New(engine, policy, rt.Config); err != nil {
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
	call := rt.call(c)
	call.Next = func(w *exchange.Writer, r *http.Request) {
		inner = newWriter(w, c)
		c.Writer, c.Request = inner, r
		defer carry(r.Context(), c)()
		defer inner.bypassed()
		c.Next()
		inner.finish()
	}
	if !rt.Serve(call) {
		carry(request.Context(), c)
		c.Next()
		return
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
	call := exchange.Call{Writer: c.Writer, Request: c.Request, ScopeContext: scopeContext{c.Request.Context(), c}}
	if path := c.FullPath(); path != "" {
		call.Route = c.Request.Method + " " + path
	}
	if rt.operation != nil {
		call.Operation = rt.operation(c)
	}
	if rt.refusals != nil {
		outer, request := c.Writer, c.Request
		call.Refuse = func(w *exchange.Writer, r *idem.Refusal) {
			c.Writer, c.Request = outer, request // the handlers may have run with others
			c.Writer = newWriter(w, c)
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
