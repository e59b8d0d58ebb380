// Package server is the sample's HTTP: routes, authentication, validation and
// answers.
//
// A request to a route that moves money passes authentication, validation of the
// body, the idempotency middleware and the handler, in this order. So a request
// without permission or with an invalid body leaves its key untouched, and a replay
// goes only to the owner of the key. For a request with an invalid body and without
// a key, the body is reported.
//
// Bodies are read as JSON under any Content-Type, and unknown members are refused.
// ?limit=N bounds a list (1,000 by default), and has_more tells whether there is
// more.
package server

import (
	"cmp"
	_ "embed"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"
	"go.opentelemetry.io/contrib/instrumentation/net/http/otelhttp"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/example-payments/telemetry"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// Config holds the parts of a [Server]. All but Wait, Resolver, Console, Timeline and
// BodyTimeout are required.
type Config struct {
	Engine    *idem.Engine
	Service   *payments.Service
	Ledger    payments.Ledger
	Keys      payments.APIKeys
	Telemetry *telemetry.Telemetry
	Log       *slog.Logger
	Wait      time.Duration // how long a duplicate waits for the first request
	Resolver  idem.Resolver // without it outcomes in doubt stay unknown
	Console   http.Handler  // the operator's page below /console, nil for none
	Timeline  *Timeline     // what happens to each key, nil for a new one

	BodyTimeout time.Duration // for a client to send a body, 30 s by default
}

// Server is the HTTP handler of the sample. Make it with [New]. It has one method per
// route and step, and so more than other types.
type Server struct {
	unready atomic.Bool // the last answer of readyz
	cfg     Config
	gin     *gin.Engine
	handler http.Handler // gin, measured, with limits
	ready   *payments.Readiness
}

// releaseMode is set once for the process. Gin's debug mode writes to standard
// output, where only the ready line may be.
var releaseMode = sync.OnceFunc(func() { gin.SetMode(gin.ReleaseMode) })

// New returns the server. It returns an error if the policies are wrong.
func New(cfg Config) (*Server, error) {
	releaseMode()
	s := &Server{cfg: cfg, gin: gin.New(), ready: payments.NewReadiness(cfg.Engine, cfg.Ledger)}
	s.handler = hurried(measured(s.gin, cfg.Telemetry), cmp.Or(cfg.BodyTimeout, bodyTimeout))
	s.gin.HandleMethodNotAllowed = true
	s.gin.RedirectTrailingSlash = false // a redirected POST is a second request
	if err := s.gin.SetTrustedProxies(nil); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.gin.Use(nameRoute, s.recover)
	s.gin.NoRoute(func(c *gin.Context) { abort(c, codeNotFound, "See / for the routes.") })
	s.gin.NoMethod(func(c *gin.Context) { abort(c, codeMethodNotAllowed, "See the Allow header.") })
	if s.cfg.Timeline == nil {
		s.cfg.Timeline = NewTimeline()
	}
	s.pages()
	s.get("/openapi.json", func(c *gin.Context) { c.Data(http.StatusOK, "application/json", description) })
	s.get("/healthz", func(c *gin.Context) { c.JSON(http.StatusOK, gin.H{"status": "ok"}) })
	s.get("/readyz", s.readyz)
	s.get("/metrics", gin.WrapH(cfg.Telemetry.Handler()))
	if cfg.Console != nil {
		s.get("/console", func(c *gin.Context) { c.Redirect(http.StatusSeeOther, "/console/") })
		s.get("/console/*path", gin.WrapH(cfg.Console))
		s.gin.POST("/console/*path", gin.WrapH(cfg.Console))
	}
	return s, s.routes(s.gin.Group("/v1", s.authenticate))
}

// get serves a page to GET and HEAD. net/http sends no body to HEAD.
func (s *Server) get(path string, page gin.HandlerFunc) {
	s.gin.Match([]string{http.MethodGet, http.MethodHead}, path, page)
}

// routes sets up the routes that need an API key.
func (s *Server) routes(v1 *gin.RouterGroup) error {
	clientKeys, issuedTokens, cfg := s.policy("POST /v1/payments", false), s.policy("POST /v1/trades", true), exchange.Config{Documentation: documentation}
	clientKey, err := idemgin.New(s.cfg.Engine, clientKeys, cfg)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	issuedToken, err := idemgin.New(s.cfg.Engine, issuedTokens, cfg)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	tokens, err := idemgin.TokenHandler(s.cfg.Engine, issuedTokens, idem.DefaultTokenTTL, cfg)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	status, err := idemgin.StatusHandler(s.cfg.Engine, s.policy("", false), cfg) // of every route
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	v1.POST("/payments", s.readOrder, s.received, s.mayCrash, s.logAnswered, clientKey, s.pay)
	v1.POST("/trades", s.readOrder, s.logAnswered, issuedToken, s.pay)
	v1.POST("/tokens", tokens)
	v1.GET("/idempotency", status)
	v1.GET("/timeline", s.live)
	v1.GET("/payments", s.listPayments)
	v1.GET("/payments/:id", s.getPayment)
	v1.GET("/accounts", s.listAccounts)
	v1.GET("/accounts/:id", s.getAccount)
	return nil
}

func (s *Server) policy(route string, issued bool) idem.Policy {
	return idem.Policy{Name: route, Scope: payments.Scope, IssuedTokens: issued, DuplicateWait: s.cfg.Wait, InDoubt: idem.AskResolver(s.cfg.Resolver)}
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.handler.ServeHTTP(w, r) }

// authenticate refuses requests without a known API key, and puts the merchant into
// the context of all others.
func (s *Server) authenticate(c *gin.Context) {
	merchant, ok := s.cfg.Keys.Merchant(c.Request.Header.Values("Authorization"))
	if !ok {
		c.Header("WWW-Authenticate", `Bearer realm="payments"`)
		abort(c, codeUnauthorized, "Send Authorization: Bearer and a known API key.")
		return
	}
	c.Request = c.Request.WithContext(payments.WithMerchant(c.Request.Context(), merchant))
}

func merchantOf(c *gin.Context) string { return payments.MerchantOf(c.Request.Context()) }

// routeOf names the route for logs and traces. It is a pattern and never a client's path.
func routeOf(c *gin.Context) string {
	if p := c.FullPath(); p != "" {
		return c.Request.Method + " " + p
	}
	return "none"
}

// measured starts a span for each request to the API, in the trace of its caller, and measures
// it. Probes are left out.
func measured(next http.Handler, t *telemetry.Telemetry) http.Handler {
	return otelhttp.NewHandler(next, "http", otelhttp.WithTracerProvider(t.Tracers), otelhttp.WithMeterProvider(t.Meters),
		otelhttp.WithPropagators(t.Propagator),
		otelhttp.WithFilter(func(r *http.Request) bool { return strings.HasPrefix(r.URL.Path, "/v1/") }))
}

// nameRoute tells telemetry the route, which only Gin knows.
func nameRoute(c *gin.Context) {
	ctx := c.Request.Context()
	labels, _ := otelhttp.LabelerFromContext(ctx)
	labels.Add(attribute.String("http.route", c.FullPath()))
	trace.SpanFromContext(ctx).SetName(routeOf(c))
}

// recover answers for a handler that panicked. The engine has already settled the
// attempt as in doubt.
func (s *Server) recover(c *gin.Context) {
	defer func() {
		r := recover()
		if r == nil {
			return
		}
		if err, ok := r.(error); ok && errors.Is(err, http.ErrAbortHandler) {
			panic(r) // net/http cuts the connection
		}
		s.cfg.Log.LogAttrs(c.Request.Context(), slog.LevelError, "panic", slog.String("route", routeOf(c)),
			slog.Any("panic", r), slog.String("stack", string(debug.Stack())))
		if c.Writer.Written() {
			panic(http.ErrAbortHandler) // half an answer must not look whole
		}
		abort(c, codeInternal, "The outcome is not known. Send the request again with the same key.")
	}()
	c.Next()
}

// readyz tells whether a payment with a fresh key would be served now.
func (s *Server) readyz(c *gin.Context) {
	ctx := c.Request.Context()
	if err := s.ready.Check(ctx); err != nil {
		s.unready.Store(true)
		s.cfg.Log.WarnContext(ctx, "not ready", "err", err)
		abort(c, string(idem.CodeUnavailable), "Lock, token store or ledger cannot be reached.")
		return
	}
	if s.unready.CompareAndSwap(true, false) {
		s.cfg.Log.InfoContext(ctx, "ready again")
	}
	c.JSON(http.StatusOK, gin.H{"status": "ready"})
}

// description is the API in OpenAPI 3.1.
//
//go:embed openapi.json
var description []byte
