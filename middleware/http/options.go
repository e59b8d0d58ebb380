package idemhttp

import (
	"context"
	"errors"
	"net/http"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

// Option changes what the middleware and the handlers of this package do. A
// nil option is ignored.
type Option func(*options)

type options struct {
	httpexchange.Config
	scope     func(*http.Request) (string, error)
	operation func(*http.Request) string
	refusals  func(http.ResponseWriter, *http.Request, *idem.Refusal)
}

// WithScope tells whose key a request carries by the request itself, for
// authentication that leaves nothing in the context. It takes the place of
// [idem.Policy].Scope and has to keep to [idem.ScopeFunc]: an error, or "",
// refuses the request as internal.
func WithScope(fn func(*http.Request) (string, error)) Option {
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
func WithOperation(fn func(*http.Request) string) Option {
	return func(o *options) { o.operation = fn }
}

// WithComparedHeaders makes request headers part of what a request is: one with
// the same key and another value of any of them is refused as key-reused. "Host"
// names the host. By default no header is compared but Content-Type and
// Content-Encoding, and neither is the host.
func WithComparedHeaders(names ...string) Option {
	return func(o *options) { o.Compare = append(o.Compare, names...) }
}

// WithMethods names the methods that are protected, in place of the default: all
// but GET, HEAD, OPTIONS and TRACE, which are safe by definition (RFC 9110,
// section 9.2.1). Requests of another method go straight to the handler, with a key
// or without one. GET does not stand for HEAD, which [http.ServeMux] hands to the
// handlers of GET.
func WithMethods(methods ...string) Option {
	return func(o *options) { o.Methods = append([]string{}, methods...) }
}

// WithOptionalKey lets requests without a key through to the handler, which then
// runs outside of an execution: [idem.CheckOwner] and [idem.DownstreamKey] fail there
// with [idem.ErrNoExecution]. Each is reported as [idem.EventUnprotected]. A key that
// is there and malformed is refused all the same. On a route for issued tokens it is a
// wiring error.
func WithOptionalKey() Option {
	return func(o *options) { o.OptionalKey = true }
}

// WithDocumentation names the page that tells clients how to use keys: an absolute
// URI, or a path on this server. Refusals then have a problem type, which is that
// URI and the code as its fragment, and the same in a Link header
// (draft-ietf-httpapi-idempotency-key-header-07, section 2.7). By default they
// have neither.
func WithDocumentation(uri string) Option {
	return func(o *options) { o.Documentation = uri }
}

// WithRefusals has refusals written by fn, in the format of the application's
// other errors. It is given what [WriteRefusal] would write: r.Code with its
// status, title and r.Detail(), and Retry-After and Cache-Control, which are set
// already. The status is the code's, unless fn sets another one. r.Err is not for
// clients. Where fn writes nothing, the refusal is written as by default.
//
// A service with this middleware that calls this one tells a refusal from an
// outcome by the problem+json of the default format.
func WithRefusals(fn func(w http.ResponseWriter, req *http.Request, r *idem.Refusal)) Option {
	return func(o *options) { o.refusals = fn }
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

// route is an exchange with what net/http knows of it.
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
		policy.Scope = func(ctx context.Context) (string, error) {
			r, ok := ctx.Value(requestKey{}).(*http.Request)
			if !ok {
				return "", errors.New("not a request of net/http")
			}
			return rt.scope(r)
		}
	}
	var err error
	rt.Exchange, err = httpexchange.New(engine, policy, rt.Config)
	return rt, err
}

// call describes a request to the exchange.
func (rt *route) call(w http.ResponseWriter, r *http.Request) httpexchange.Call {
	c := httpexchange.Call{Writer: w, Request: r, ScopeContext: r.Context(), Route: r.Pattern}
	if c.Route == "" { // not the path, nor any method: they would make as many names as clients like
		c.Route = httpexchange.MethodName(r.Method)
	}
	if rt.scope != nil {
		c.ScopeContext = context.WithValue(c.ScopeContext, requestKey{}, r)
	}
	if rt.operation != nil {
		c.Operation = rt.operation(r)
	}
	if rt.refusals != nil {
		c.Refuse = func(refusal *idem.Refusal) bool {
			rw := &refusalWriter{ResponseWriter: w, status: refusal.Code.HTTPStatus()}
			rt.refusals(rw, r, refusal)
			return rw.written
		}
	}
	return c
}

// requestKey is where the context for the scope holds the request.
type requestKey struct{}
