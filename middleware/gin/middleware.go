package idemgin

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// New returns middleware that protects the handlers after it, on every unsafe method. cfg may be
// left out, and there is at most one. A policy without a Name gets the method and
// [gin.Context.FullPath].
//
// New returns an error for wrong wiring, such as no engine, no scope, or a header of one
// exchange among those to replay.
func New(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (gin.HandlerFunc, error) {
	rt, err := newRoute(engine, policy, cfg, exchange.New)
	if err != nil {
		return nil, err
	}
	return func(c *gin.Context) { serve(rt, c) }, nil
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) gin.HandlerFunc {
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
func StatusHandler(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) (gin.HandlerFunc, error) {
	rt, err := newRoute(engine, policy, cfg, exchange.NewWithoutHandler)
	if err != nil {
		return nil, err
	}
	return func(c *gin.Context) { rt.Status(call(c)) }, nil
}

// MustStatusHandler is [StatusHandler], and panics where that returns an error.
func MustStatusHandler(engine *idem.Engine, policy idem.Policy, cfg ...exchange.Config) gin.HandlerFunc {
	return adapter.Must(StatusHandler(engine, policy, cfg...))
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// The handler uses the policy's Scope. The route for these tokens has to use the same.
// ttl 0 stands for [idem.DefaultTokenTTL]. The error is for wrong wiring, as that of [New].
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, cfg ...exchange.Config) (gin.HandlerFunc, error) {
	rt, err := newRoute(engine, policy, cfg, exchange.NewWithoutHandler)
	if err == nil && ttl < 0 {
		err = errors.New("idemgin: the time to live of tokens is negative")
	}
	if err != nil {
		return nil, err
	}
	return func(c *gin.Context) { rt.IssueToken(call(c), ttl) }, nil
}

// MustTokenHandler is [TokenHandler], and panics where that returns an error.
func MustTokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, cfg ...exchange.Config) gin.HandlerFunc {
	return adapter.Must(TokenHandler(engine, policy, ttl, cfg...))
}

// constructor is exchange.New or exchange.NewWithoutHandler.
type constructor func(*idem.Engine, idem.Policy, ...exchange.Config) (*exchange.Route, error)

func newRoute(engine *idem.Engine, policy idem.Policy, cfg []exchange.Config, construct constructor) (rt *exchange.Route, err error) {
	if err = checkGin(); err == nil {
		rt, err = construct(engine, policy, cfg...)
	}
	if err != nil {
		return nil, fmt.Errorf("idemgin: %w", err)
	}
	return rt, nil
}

// serve runs the rest of the chain inside of the exchange. If the exchange has an answer
// without it, the chain is aborted.
func serve(rt *exchange.Route, c *gin.Context) {
	outer, request := c.Writer, c.Request
	defer func() { c.Writer, c.Request = outer, request }()
	var inner *writer
	var own *diversion
	var first *firstRun
	errs := len(c.Errors)
	call := call(c)
	call.RunAgain = rt.MayRunAgain() && beforeLast(c)
	call.Early = func() { own.end() }
	call.Next = func(w *exchange.Writer, r *http.Request) {
		run, handle := c, c.Next
		if first != nil {
			if first.gone { // the client retries
				idem.ReportFailure(r.Context(), errHandleContext)
				w.Header().Set("Retry-After", "1")
				w.WriteHeader(http.StatusServiceUnavailable)
				return
			}
			run, handle = first.again()
			defer first.keep(run)
		} else if call.RunAgain {
			first = newFirstRun(c)
		}
		inner = newWriter(w, run, outer)
		inner.again = run != c
		own = divert(run, inner)
		run.Writer, run.Request = inner, r
		defer carry(r.Context(), run)()
		if run != c { // the handler may have the first context from elsewhere
			c.Writer, c.Request = inner, r
			defer carry(r.Context(), c)()
		}
		defer own.end()
		handle()
		if first != nil && run == c {
			first.gone = c.Writer != gin.ResponseWriter(inner)
		}
		if run != c {
			first.adopt(run)
		}
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
func call(c *gin.Context) exchange.Call {
	call := exchange.Call{Writer: c.Writer, Request: c.Request, Context: ginContext{c.Request.Context(), c},
		Refusing: ginValues{c.Request.Context(), c}}
	call.Misplaced = func() error { return misplaced(c) }
	if kept, ok := c.Get(gin.BodyBytesKey); ok { // by c.ShouldBindBodyWith
		call.Kept, _ = kept.([]byte)
	}
	if path := c.FullPath(); path != "" {
		call.Route = c.Request.Method + " " + path
	} else {
		call.Unrouted = true
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

// ginValues is the request's context. Value also finds the values of c.Set. It does not lead to the
// Gin context, because a refusal that is written there would be a second answer.
type ginValues struct {
	context.Context
	gin *gin.Context
}

func (s ginValues) Value(key any) any {
	if v, ok := s.gin.Get(key); ok {
		return v
	}
	return s.Context.Value(key)
}

// ginContext is the request's context. Value also finds the values of c.Set, and the
// Gin context itself under [gin.ContextKey].
type ginContext struct {
	context.Context
	gin *gin.Context
}

func (s ginContext) Value(key any) any {
	if key == gin.ContextKey {
		return s.gin
	}
	if v, ok := s.gin.Get(key); ok {
		return v
	}
	return s.Context.Value(key)
}
