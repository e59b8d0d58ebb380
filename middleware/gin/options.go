package idemgin

import (
	"context"
	"errors"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

// Option changes what the middleware and the handlers of this package do. A
// nil option is ignored.
type Option func(*options)

type options struct {
	httpexchange.Config
	scope     func(*gin.Context) (string, error)
	operation func(*gin.Context) string
}

// WithScope tells whose key a request carries. It takes the place of
// [idem.Policy].Scope and has to keep to [idem.ScopeFunc]: an error, or "",
// refuses the request as internal.
func WithScope(fn func(*gin.Context) (string, error)) Option {
	return func(o *options) { o.scope = fn }
}

// WithHeader names the request header that carries the key; by default
// Idempotency-Key.
func WithHeader(name string) Option {
	return func(o *options) { o.Header = name }
}

// WithReplayHeaders adds to the response headers that are stored and replayed.
// Cookies, credentials, Date and hop-by-hop headers are a wiring error.
func WithReplayHeaders(names ...string) Option {
	return func(o *options) { o.Replay = append(o.Replay, names...) }
}

// WithOperation says what a request does, for its fingerprint; by default its
// method and escaped path. For routes that one operation can be reached by;
// "" stands for the default.
func WithOperation(fn func(*gin.Context) string) Option {
	return func(o *options) { o.operation = fn }
}

// WithStatusPolicy tells [StatusHandler] by which policy it says of a route
// whether a resolver settles its attempts, where that differs from the policy
// that it is given. It is for each route that it is named for, of any transport:
// the policy's Name, where it has none, is the route, in the form that the
// middleware there gives it. The last one for a route counts. [Middleware] and
// [TokenHandler] take no notice of it.
func WithStatusPolicy(route string, policy idem.Policy) Option {
	return func(o *options) { o.AddStatusPolicy(route, policy) }
}

// route is an exchange with what Gin knows of it.
type route struct {
	*httpexchange.Exchange
	options
}

func newRoute(engine *idem.Engine, policy idem.Policy, opts []Option) (*route, error) {
	rt := &route{}
	for _, opt := range opts {
		if opt != nil {
			opt(&rt.options)
		}
	}
	if rt.scope != nil {
		if policy.Scope != nil {
			return nil, errors.New("both Policy.Scope and WithScope are set")
		}
		policy.Scope = func(ctx context.Context) (string, error) {
			c, ok := ctx.Value(gin.ContextKey).(*gin.Context)
			if !ok {
				return "", errors.New("not a request of Gin")
			}
			return rt.scope(c)
		}
	}
	var err error
	rt.Exchange, err = httpexchange.New(engine, policy, rt.Config)
	return rt, err
}

// call describes a request to the exchange.
func (rt *route) call(c *gin.Context) httpexchange.Call {
	call := httpexchange.Call{
		Writer:       c.Writer,
		Request:      c.Request,
		ScopeContext: scopeContext{c.Request.Context(), c},
		Route:        c.Request.Method + " " + c.FullPath(),
	}
	if rt.operation != nil {
		call.Operation = rt.operation(c)
	}
	return call
}

// scopeContext is the request's context, in which Value finds what c.Set has
// stored first, and the Gin context itself under [gin.ContextKey].
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
