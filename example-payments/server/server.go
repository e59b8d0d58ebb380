package server

import (
	"fmt"
	"log/slog"
	"net/http"
	"sync"
	"sync/atomic"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/example-payments/auth"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// Config is what a [Server] is made of. All but Wait and Resolver is required.
type Config struct {
	Engine   *idem.Engine
	Service  *payments.Service
	Ledger   payments.Ledger
	Keys     auth.APIKeys
	Metrics  *Metrics
	Log      *slog.Logger
	Wait     time.Duration // how long a duplicate waits for the first request
	Resolver idem.Resolver // nil: outcomes in doubt stay unknown
}

// Server is the HTTP handler of the sample. Make it with [New].
type Server struct {
	unready atomic.Bool // as of the last time that somebody asked
	cfg     Config
	gin     *gin.Engine
}

// release is set once, for all of the process: Gin's debug mode writes to
// standard output, where the ready line has to be alone.
var release = sync.OnceFunc(func() { gin.SetMode(gin.ReleaseMode) })

// New returns the server. An error says that the policies are wrong.
func New(cfg Config) (*Server, error) {
	release()
	s := &Server{cfg: cfg, gin: gin.New()}
	s.gin.HandleMethodNotAllowed = true
	s.gin.RedirectTrailingSlash = false // a redirected POST is a second request
	if err := s.gin.SetTrustedProxies(nil); err != nil {
		return nil, fmt.Errorf("server: %w", err)
	}
	s.gin.Use(s.measure, s.recover)
	s.gin.NoRoute(func(c *gin.Context) { abort(c, codeNotFound, "See / for the routes.") })
	s.gin.NoMethod(func(c *gin.Context) { abort(c, codeMethodNotAllowed, "See the Allow header.") })
	s.gin.GET("/", s.index)
	s.gin.GET(documentation, s.describeKeys)
	s.gin.GET("/healthz", s.healthz)
	s.gin.GET("/readyz", s.readyz)
	s.gin.GET("/metrics", gin.WrapH(cfg.Metrics.Handler()))
	return s, s.routes(s.gin.Group("/v1", s.authenticate))
}

// routes sets up what needs an API key.
func (s *Server) routes(v1 *gin.RouterGroup) error {
	// An answer in doubt that asks to be repeated goes on asking.
	retryAfter, described := idemgin.WithReplayHeaders("Retry-After"), idemgin.WithDocumentation(documentation)
	clientKey, err := idemgin.New(s.cfg.Engine, s.policy(idem.ClientKey), retryAfter, described)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	issuedToken, err := idemgin.New(s.cfg.Engine, s.policy(idem.IssuedToken), retryAfter, described)
	if err != nil {
		return fmt.Errorf("server: %w", err)
	}
	v1.POST("/payments", s.readOrder, s.answered, clientKey, s.pay)
	v1.POST("/trades", s.readOrder, s.answered, issuedToken, s.pay)
	v1.POST("/tokens", idemgin.TokenHandler(s.cfg.Engine, s.policy(idem.IssuedToken), idem.DefaultTokenTTL, described))
	v1.GET("/idempotency", idemgin.StatusHandler(s.cfg.Engine, s.policy(idem.ClientKey), described))
	v1.GET("/payments", s.listPayments)
	v1.GET("/payments/:id", s.getPayment)
	v1.GET("/accounts", s.listAccounts)
	v1.GET("/accounts/:id", s.getAccount)
	return nil
}

func (s *Server) policy(kind idem.KeyKind) idem.Policy {
	return idem.Policy{Scope: auth.Scope, Kind: kind, Wait: s.cfg.Wait, Doubt: idem.Ask(s.cfg.Resolver)}
}

// ServeHTTP implements [http.Handler].
func (s *Server) ServeHTTP(w http.ResponseWriter, r *http.Request) { s.gin.ServeHTTP(w, r) }
