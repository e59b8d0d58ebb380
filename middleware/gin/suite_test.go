package idemgin_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

func TestMain(m *testing.M) {
	gin.SetMode(gin.ReleaseMode)
	gin.DefaultWriter, gin.DefaultErrorWriter = io.Discard, io.Discard
	goleak.VerifyTestMain(m)
}

// router serves every path and method with the same chain.
func router(chain ...gin.HandlerFunc) *gin.Engine {
	r := gin.New()
	r.UseRawPath = true
	r.Any("/*path", chain...)
	return r
}

func options(o exchangetest.Options) []idemgin.Option {
	opts := []idemgin.Option{nil, idemgin.WithHeader(o.Header), idemgin.WithReplayHeaders(o.Replay...)}
	if o.Scope != nil {
		opts = append(opts, idemgin.WithScope(func(c *gin.Context) (string, error) { return o.Scope(c.Request) }))
	}
	if o.Operation != nil {
		opts = append(opts, idemgin.WithOperation(func(c *gin.Context) string { return o.Operation(c.Request) }))
	}
	opts = append(opts, idemgin.WithComparedHeaders(o.Compared...), idemgin.WithDocumentation(o.Documents))
	if o.Methods != nil {
		opts = append(opts, idemgin.WithMethods(o.Methods...))
	}
	if o.Optional {
		opts = append(opts, idemgin.WithOptionalKey())
	}
	if o.Rerun {
		opts = append(opts, idemgin.WithRerun())
	}
	if o.Refusals != nil {
		opts = append(opts, idemgin.WithRefusals(func(c *gin.Context, r *idem.Refusal) { o.Refusals(c.Writer, c.Request, r) }))
	}
	for _, p := range o.StatusPolicies {
		opts = append(opts, idemgin.WithStatusPolicy(p.Route, p.Policy))
	}
	return opts
}

func TestMiddleware(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options, h http.Handler) (http.Handler, error) {
			mw, err := idemgin.New(engine, policy, options(o)...)
			if err != nil {
				return nil, err
			}
			return router(mw, gin.WrapH(h)), nil
		},
		Status: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options) http.Handler {
			return router(idemgin.StatusHandler(engine, policy, options(o)...))
		},
		Tokens: func(engine *idem.Engine, policy idem.Policy, ttl time.Duration) http.Handler {
			return router(idemgin.TokenHandler(engine, policy, ttl))
		},
	})
}
