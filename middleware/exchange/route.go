package exchange

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// DefaultHeader is the request header that carries the key
// (draft-ietf-httpapi-idempotency-key-header-07, section 2, which expired on 2026-04-18).
const DefaultHeader = "Idempotency-Key"

// ReplayedHeader marks a response that is a stored outcome, with the value Replayed. Any other value
// is of another system and says nothing.
const (
	ReplayedHeader = adapter.MarkerHeader
	Replayed       = adapter.Marker
)

// Config holds the settings of a route, the same for every framework. The zero value is safe, and
// is the default. Constructors of adapters take it as their last argument, and it may be left out.
//
// The functions get the request as it came. If the framework has a context of its own, such as
// [github.com/gin-gonic/gin.Context], the context of that request knows its values too.
type Config struct {
	// Scope finds the scope of a key in the request itself, if authentication leaves no principal
	// in the context. It takes the place of [idem.Policy].Scope and follows [idem.ScopeFunc].
	Scope func(*http.Request) (string, error)
	// Header names the request header with the key. "" stands for [DefaultHeader].
	Header string
	// Methods lists the methods that need a key. Nil stands for all methods except GET, HEAD,
	// OPTIONS, TRACE and QUERY, which are safe (RFC 9110, section 9.2.1). Requests of another
	// method go straight to the handler, with or without a key. GET does not stand for HEAD.
	Methods []string
	// OptionalKey lets requests without a key through to the handler, while clients learn to send keys. Nothing
	// keeps a repeat of such a request from running again. Each is reported as [telemetry.EventUnprotected], and
	// [idem.Engine.WithoutKey] counts them by route. A malformed key is refused all the same. On a route for issued tokens
	// it is a wiring error.
	//
	// With an engine from [idem.NewJoined] the handler gets a transaction as with a key. The middleware commits it after a
	// success, and the client gets the answer once COMMIT is known. On a route with [idem.Policy].CallsOtherSystems the handler does not
	// run again after a conflict, and the client gets outcome-unknown then. With any other engine the handler runs as without the
	// middleware. In both cases [idem.FromContext] is false, and [idem.DownstreamKey] returns an error that wraps
	// [idem.ErrNoExecution], or [idem.ErrUndeclared] as with a key.
	OptionalKey bool
	// Operation says what a request does, for its fingerprint. It is for operations with several
	// routes. Nil, and the answer "", stand for method and escaped path.
	Operation func(*http.Request) string
	// Compare lists request headers as a part of the request. A repeat with another value is
	// refused as key-reused. "Host" stands for the host. Content-Type and Content-Encoding are
	// always compared.
	Compare []string
	// Replay lists response headers to store and replay in addition to
	// Content-Disposition, Content-Encoding, Content-Language, Content-Type, ETag and
	// Location. Cookies, credentials, Date and hop-by-hop headers are an error.
	Replay []string
	// Streaming says that every response that the handler flushes is sent as it is written,
	// and repeats get result-unavailable. Otherwise only text/event-stream is sent so, and any
	// other response is kept, flushed or not. An engine from [idem.NewJoined] sends no part of a
	// response early in any case, and refuses to flush a stream ([http.ErrNotSupported]).
	Streaming bool
	// Documentation names the page about keys for clients, as an absolute URI or a path on this
	// server. Refusals then have a problem type and a Link header
	// (draft-ietf-httpapi-idempotency-key-header-07, section 2.7, which expired on 2026-04-18). Both
	// are the URI with the code as its fragment. Without it they have neither.
	Documentation string
	// Refuse writes refusals in the format of the application's other errors. It uses the code of
	// the refusal with its status, its title, and Detail(). Err is not for clients. Retry-After and
	// Cache-Control are set already. The status is that of the code unless Refuse writes another
	// one. If Refuse is nil or writes nothing, [WriteRefusal] takes its place. A calling service
	// recognises refusals of that format only.
	Refuse func(http.ResponseWriter, *http.Request, *idem.Refusal)
	// StatusPolicies tell the status handler which routes resolve their doubts. They are for routes
	// with another policy than that of the handler. Each has as its Name the route, of any transport,
	// as its adapter names it. Two for one route are a wiring error. Middleware and token handler
	// ignore them.
	StatusPolicies []idem.Policy
}

// engine is the part of [idem.Engine] for routes.
type engine interface {
	Do(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	DoWithoutKey(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	IssueToken(ctx context.Context, scope string, ttl time.Duration) (idem.Token, error)
	Status(ctx context.Context, scope string, key idem.Key, policies ...*idem.Policy) (idem.Status, error)
	ReportRefused(ctx context.Context, route string, r *idem.Refusal)
	Nested(ctx context.Context, op *idem.Operation) (bool, error)
	ReportUnprotected(ctx context.Context, route string)
	ReportMisused(ctx context.Context, err error)
	MayRunAgain(op *idem.Operation) bool
	Joined() bool
}

// Route is an engine with a policy and a config. It is safe for concurrent use.
type Route struct {
	engine engine
	policy idem.Policy
	cfg    Config
	replay adapter.Names
	// statusPolicies are those of the config, followed by policy.
	statusPolicies []*idem.Policy
}

// New returns a route. cfg may be left out, and there is at most one. New returns an error for
// wrong wiring, such as no engine, no scope, or a forbidden header.
func New(e *idem.Engine, policy idem.Policy, cfg ...Config) (*Route, error) {
	return newRoute(e, policy, cfg, e.Fit)
}

// NewWithoutHandler returns a route for [Route.Status] and [Route.IssueToken], which run no handler. So the policy gets no
// guarantee, and need not choose InDoubt. The rest is as with New.
func NewWithoutHandler(e *idem.Engine, policy idem.Policy, cfg ...Config) (*Route, error) {
	return newRoute(e, policy, cfg, idem.Policy.WithDefaults)
}

func newRoute(e *idem.Engine, policy idem.Policy, cfg []Config, fit func(idem.Policy) (idem.Policy, error)) (*Route, error) {
	c, err := adapter.One(cfg)
	if err != nil {
		return nil, err
	}
	if e == nil {
		return nil, errors.New("no engine")
	}
	if c.Scope != nil {
		policy.Scope = func(ctx context.Context) (string, error) { return c.Scope(ctx.Value(requestKey{}).(*http.Request)) }
	}
	if c.OptionalKey {
		policy = policy.KeyOptional()
	}
	if policy, err = fit(policy); err != nil {
		return nil, err
	}
	rt := &Route{engine: e, policy: policy, cfg: c}
	if err := rt.checkConfig(); err != nil {
		return nil, err
	}
	if rt.replay, err = adapter.NewNames(replayed, c.Replay, adapter.IsToken); err != nil {
		return nil, err
	}
	rt.statusPolicies, err = adapter.StatusPolicies(c.StatusPolicies, &rt.policy)
	return rt, err
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(e *idem.Engine, policy idem.Policy, cfg ...Config) *Route {
	return adapter.Must(New(e, policy, cfg...))
}

// MayRunAgain reports whether a handler of the route may run again for one request
// ([Call].RunAgain), because of [idem.WithConflictRetries].
func (rt *Route) MayRunAgain() bool { return rt.engine.MayRunAgain(&idem.Operation{}) }

// replayed lists the response headers for every route.
var replayed = []string{
	"Content-Disposition", "Content-Encoding", "Content-Language", "Content-Type", "Etag", "Location",
}

// checkConfig checks the config and makes the names of headers canonical.
func (rt *Route) checkConfig() error {
	c := &rt.cfg
	if c.OptionalKey && rt.policy.IssuedTokens {
		return errors.New("the key is optional on a route for issued tokens: nothing would have to be redeemed")
	}
	if c.Methods != nil && len(c.Methods) == 0 {
		return errors.New("no methods: nothing would be protected")
	}
	if err := adapter.CheckMethods(c.Methods); err != nil {
		return err
	}
	names := append([]string{cmp.Or(c.Header, DefaultHeader)}, c.Compare...)
	for i, name := range names {
		if !adapter.IsToken(name) {
			return fmt.Errorf("%q is not a header name", name)
		}
		names[i] = http.CanonicalHeaderKey(name)
	}
	c.Header, c.Compare = names[0], names[1:]
	u, err := url.Parse(c.Documentation) // for a Link header, so without a fragment
	if uri := c.Documentation; uri != "" && (err != nil || strings.ContainsAny(uri, "<>\"\\ #") || !u.IsAbs() && uri[0] != '/') {
		return fmt.Errorf("the documentation %q is neither an absolute URI nor a path, without a fragment", uri)
	}
	return nil
}

// protects reports whether a request is for the engine. Other requests go straight to the handler.
func (rt *Route) protects(c *Call) bool {
	protected := !adapter.IsSafe(c.Request.Method)
	if rt.cfg.Methods != nil {
		protected = slices.Contains(rt.cfg.Methods, c.Request.Method)
	}
	if protected && rt.withoutKey(c) && !rt.engine.Joined() {
		rt.engine.ReportUnprotected(c.Request.Context(), rt.policyOf(c).Name)
		return false
	}
	return protected
}

// withoutKey reports whether a request has no key and need not have one.
func (rt *Route) withoutKey(c *Call) bool {
	return rt.cfg.OptionalKey && len(c.Request.Header[rt.cfg.Header]) == 0
}

// policyOf returns the policy with a name. Without a route the name is the method, or
// "other" for an invented method. Clients must not choose names.
func (rt *Route) policyOf(c *Call) *idem.Policy {
	if rt.policy.Name != "" {
		return &rt.policy
	}
	route, known := c.Route, []string{http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete, http.MethodConnect}
	if m := c.Request.Method; route == "" && (adapter.IsSafe(m) || slices.Contains(known, m)) {
		route = m
	}
	p := rt.policy.ForRoute(cmp.Or(route, "other"))
	return &p
}
