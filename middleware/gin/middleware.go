package idemgin

import (
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

// New returns middleware that protects the handlers behind it, on every method that
// is not safe; see [WithMethods]. The policy's Name, where it has none, is the method and [gin.Context.FullPath].
//
// The error says what is wrong with the wiring: no engine, no scope, a header
// that cannot be replayed.
func New(engine *idem.Engine, policy idem.Policy, opts ...Option) (gin.HandlerFunc, error) {
	rt, err := newRoute(engine, policy, opts)
	if err != nil {
		return nil, fmt.Errorf("idemgin: %w", err)
	}
	return rt.serve, nil
}

// Middleware is [New] for wiring that is known to be right: it panics where
// New returns an error, at start and never later, as [regexp.MustCompile].
func Middleware(engine *idem.Engine, policy idem.Policy, opts ...Option) gin.HandlerFunc {
	h, err := New(engine, policy, opts...)
	if err != nil {
		panic(err)
	}
	return h
}

// serve runs the rest of the chain inside of the exchange, and nothing of it
// where there was an answer already.
func (rt *route) serve(c *gin.Context) {
	outer, request := c.Writer, c.Request
	defer func() { c.Writer, c.Request = outer, request }()
	var inner *writer
	call := rt.call(c)
	call.Next = func(capture *httpexchange.Capture, r *http.Request) {
		inner = newWriter(capture, c)
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

// StatusHandler answers GET with where the key in the request's
// Idempotency-Key header stands, for its owner:
//
//	{"state":"completed","operation_id":"op_…","kind":"client-key","attempt":1,"since":"…","expires_at":"…"}
//
// Of a key of which nothing is known, another caller's included, it says
// {"state":"none"}. While the attempt is pending or unknown there is "resolver":
// true where it is settled without a person, should it have been interrupted.
//
// Of the policy only Scope and Doubt count, the latter for every route where it
// has no Name, and else for the route of its Name. See [WithStatusPolicy] for
// routes that treat doubt in another way. It panics on a wiring error, as
// [Middleware].
func StatusHandler(engine *idem.Engine, policy idem.Policy, opts ...Option) gin.HandlerFunc {
	rt := mustRoute(engine, policy, opts)
	return func(c *gin.Context) { rt.Status(rt.call(c)) }
}

// TokenHandler answers POST with 201 and a new one-time token for the caller:
//
//	{"token":"…","expires_at":"2026-01-02T15:04:05Z"}
//
// Of the policy only the scope counts; it has to be that of the route which
// takes the tokens. ttl 0 means [idem.DefaultTokenTTL]. It panics on a wiring
// error, as [Middleware].
func TokenHandler(engine *idem.Engine, policy idem.Policy, ttl time.Duration, opts ...Option) gin.HandlerFunc {
	rt := mustRoute(engine, policy, opts)
	if ttl < 0 {
		panic(fmt.Errorf("idemgin: tokens for %v", ttl))
	}
	return func(c *gin.Context) { rt.IssueToken(rt.call(c), ttl) }
}

func mustRoute(engine *idem.Engine, policy idem.Policy, opts []Option) *route {
	rt, err := newRoute(engine, policy, opts)
	if err != nil {
		panic(fmt.Errorf("idemgin: %w", err))
	}
	return rt
}
