package idemgin_test

import (
	"io"
	"net/http"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
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

// served is what router returns, or the error of a handler's wiring.
func served(h gin.HandlerFunc, err error, behind ...gin.HandlerFunc) (http.Handler, error) {
	if err != nil {
		return nil, err
	}
	return router(append([]gin.HandlerFunc{h}, behind...)...), nil
}

func TestMiddleware(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config, h http.Handler) (http.Handler, error) {
			protect, err := idemgin.New(engine, policy, cfg)
			return served(protect, err, gin.WrapH(h))
		},
		Status: status,
		Tokens: func(engine *idem.Engine, policy idem.Policy, ttl time.Duration) (http.Handler, error) {
			h, err := idemgin.TokenHandler(engine, policy, ttl)
			return served(h, err)
		},
	})
}

func status(engine *idem.Engine, policy idem.Policy, cfg exchange.Config) (http.Handler, error) {
	h, err := idemgin.StatusHandler(engine, policy, cfg)
	return served(h, err)
}
