package httpexchange

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// DefaultHeader is the request header that carries the key
// (draft-ietf-httpapi-idempotency-key-header-07, section 2).
const DefaultHeader = "Idempotency-Key"

// Engine is what an exchange needs of [idem.Engine].
type Engine interface {
	Do(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	IssueToken(ctx context.Context, scope string, ttl time.Duration) (idem.Token, error)
	Status(ctx context.Context, scope string, key idem.Key, policies ...*idem.Policy) (idem.Status, error)
	Refused(ctx context.Context, route string, r *idem.Refusal)
	PassThrough(ctx context.Context, op *idem.Operation) (bool, error)
	Unprotected(ctx context.Context, route string)
}

var _ Engine = (*idem.Engine)(nil)

// Config is what an adapter's options set. The zero value is the default.
type Config struct {
	Header  string   // of the key; DefaultHeader where ""
	Replay  []string // more headers to replay
	Compare []string // request headers that are part of the request; "Host" is the host
	// Methods are those that are protected; nil: all but the safe ones.
	Methods []string
	// OptionalKey lets requests without a key through to the handler.
	OptionalKey bool
	// Documentation is the URI that refusals point to; "" for none.
	Documentation string
	// StatusPolicies are those by which the status handler tells of their routes;
	// the last of a name counts.
	StatusPolicies []idem.Policy
}

// AddStatusPolicy adds to StatusPolicies. The policy's Name, where it has none,
// is the route as a record keeps it.
func (c *Config) AddStatusPolicy(route string, p idem.Policy) {
	if p.Name == "" {
		p = p.ForRoute(route)
	}
	c.StatusPolicies = append(c.StatusPolicies, p)
}

// Exchange is a route, set up. It is safe for concurrent use.
type Exchange struct {
	engine Engine
	policy idem.Policy
	header string
	allow  headerSet
	cfg    Config // checked
	// statusPolicies are those of the Config, last first, and then policy.
	statusPolicies []*idem.Policy
}

// New checks the wiring of a route.
func New(engine Engine, policy idem.Policy, cfg Config) (*Exchange, error) {
	if e, ok := engine.(*idem.Engine); engine == nil || ok && e == nil {
		return nil, errors.New("no engine")
	}
	policy, err := policy.WithDefaults()
	if err != nil {
		return nil, err
	}
	if err := cfg.check(&policy); err != nil {
		return nil, err
	}
	x := &Exchange{engine: engine, policy: policy, header: DefaultHeader, cfg: cfg}
	if cfg.Header != "" {
		if !isToken(cfg.Header) {
			return nil, fmt.Errorf("%q is not a header name", cfg.Header)
		}
		x.header = http.CanonicalHeaderKey(cfg.Header)
	}
	if x.allow, err = newHeaderSet(cfg.Replay); err != nil {
		return nil, err
	}
	for _, p := range slices.Backward(cfg.StatusPolicies) {
		if p.Name == "" {
			return nil, errors.New("a status policy without a route")
		}
		x.statusPolicies = append(x.statusPolicies, &p)
	}
	x.statusPolicies = append(x.statusPolicies, &x.policy)
	return x, nil
}

// Call is one request as an adapter hands it over.
type Call struct {
	Writer  http.ResponseWriter
	Request *http.Request
	// ScopeContext is what Policy.Scope is asked with.
	ScopeContext context.Context
	// Route is Policy.Name where the policy has none.
	Route string
	// Operation is what the request does, for its fingerprint; method and
	// escaped path where "".
	Operation string
	// Next runs the handler. It is called at most once, in the goroutine of
	// the call, with the request whose context the engine made.
	Next func(w *Capture, r *http.Request)
	// Refuse writes a refusal in a format of the application, and reports whether
	// it has written anything. Nil: the format is [WriteRefusal]'s.
	Refuse func(r *idem.Refusal) bool
}

// Serve answers one request. It is false for a request that the caller has to
// hand to the handler itself: one that is not protected, or that is a part of the
// running execution of its key. It panics as the handler does, and with
// [http.ErrAbortHandler] where a response that has been streamed to the client
// turned out not to be the answer.
func (x *Exchange) Serve(c Call) bool {
	return x.protects(&c) && x.serve(&c)
}

func (x *Exchange) serve(c *Call) bool {
	ctx := c.Request.Context()
	policy := x.policyOf(c.Route)
	op, body, err := x.read(c, policy)
	part := false
	if err == nil {
		part, err = x.engine.PassThrough(ctx, &op)
	}
	switch {
	case err != nil:
		refusal := refusalOf(err)
		x.engine.Refused(ctx, policy.Name, refusal)
		x.refuse(c, refusal)
	case part:
		restore(c.Request, body)
		return false
	default:
		x.do(c, op, body)
	}
	return true
}

// do gives a request to the engine.
func (x *Exchange) do(c *Call, op idem.Operation, body []byte) {
	capture := newCapture(c.Writer, op.Policy.MaxResponseBody)
	ran, settled := false, false
	defer func() {
		if !settled { // a panic is on its way
			capture.poison()
		}
	}()
	res, err := x.engine.Do(c.Request.Context(), op, func(ctx context.Context) (idem.Response, error) {
		ran = true
		capture.ctx = ctx
		defer capture.returned()
		r := restore(c.Request.WithContext(ctx), body)
		defer func() { c.Request.MultipartForm = r.MultipartForm }() // for the server, which removes its files
		c.Next(capture, r)
		if code := capture.relayed(); code != "" {
			return idem.Response{}, relayed(code)
		}
		return capture.finish(x.allow), nil
	})
	settled = true
	live := ran && (err == nil && !res.Replayed || isRelayed(err))
	switch {
	case capture.hijacked:
	case capture.streamed && (!live || capture.failed):
		capture.poison()
		panic(http.ErrAbortHandler)
	case capture.streamed:
	case live:
		capture.send()
	case err != nil:
		x.refuse(c, refusalOf(err))
	default:
		x.replay(c, &res.Response)
	}
}

// policyOf fills in the name.
func (x *Exchange) policyOf(route string) *idem.Policy {
	if x.policy.Name != "" || route == "" {
		return &x.policy
	}
	p := x.policy.ForRoute(route)
	return &p
}

// refusalOf holds every other error back from the client.
func refusalOf(err error) *idem.Refusal {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return r
	}
	return idem.Refuse(idem.CodeInternal, err)
}
