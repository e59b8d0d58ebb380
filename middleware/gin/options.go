package idemgin

import (
	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// Option changes the middleware and the handlers of this package. A nil option is
// ignored.
type Option func(*options)

type options struct {
	exchange.Config
	scope     func(*gin.Context) (string, error)
	operation func(*gin.Context) string
	refusals  func(*gin.Context, *idem.Refusal)
}

func collect(opts []Option) (o options) {
	adapter.Apply(&o, opts)
	return o
}

// WithScope finds the scope of a key. It replaces [idem.Policy].Scope and follows
// [idem.ScopeFunc]: an error, or "", refuses the request as internal.
func WithScope(fn func(*gin.Context) (string, error)) Option {
	return func(o *options) { o.scope = fn }
}

// WithHeader names the request header with the key. The default is Idempotency-Key.
func WithHeader(name string) Option {
	return func(o *options) { o.Header = name }
}

// WithReplayHeaders adds to the response headers that are stored and replayed. Cookies,
// credentials, Date and hop-by-hop headers are a wiring error.
func WithReplayHeaders(names ...string) Option {
	return func(o *options) { o.Replay = append(o.Replay, names...) }
}

// WithOperation says what a request does, for its fingerprint. It is for an operation
// that several routes reach. The default, also for "", is method and escaped path.
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
// [idem.ErrNoExecution]. Each such request is reported as [idem.EventUnprotected]. A
// malformed key is refused all the same. On a route for issued tokens the option is a
// wiring error.
func WithOptionalKey() Option {
	return func(o *options) { o.OptionalKey = true }
}

// WithDocumentation names the page that tells clients how to use keys: an absolute URI,
// or a path on this server. Refusals then have a problem type, which is the URI with the
// code as its fragment, and a Link header with the same
// (draft-ietf-httpapi-idempotency-key-header-07, section 2.7). By default they have
// neither.
func WithDocumentation(uri string) Option {
	return func(o *options) { o.Documentation = uri }
}

// WithRefusals has fn write refusals in the format of the application's other errors.
// fn uses r.Code with its status, its title, and r.Detail(). Retry-After and
// Cache-Control are set already. The status is that of the code unless fn sets another
// one. r.Err is not for clients. If fn writes nothing, the default format takes its
// place.
//
// A service that calls this one recognises a refusal by the problem+json of the default
// format only.
func WithRefusals(fn func(c *gin.Context, r *idem.Refusal)) Option {
	return func(o *options) { o.refusals = fn }
}

// WithStatusPolicy tells [StatusHandler] whether a route resolves its doubts, if that
// differs from the handler's policy. The route has the form in which its middleware
// names it, and can be of any transport. The policy's Name replaces it. The last policy
// for a route counts. [Middleware] and [TokenHandler] ignore the option.
func WithStatusPolicy(route string, policy idem.Policy) Option {
	return func(o *options) { o.StatusPolicies = append(o.StatusPolicies, policy.ForRoute(route)) }
}
