package exchangetest_test

import (
	"net/http"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// The tests of an adapter run the suite. Beyond names what the framework cannot do.
func ExampleRun() {
	testMiddleware := func(t *testing.T) { // TestMiddleware
		exchangetest.Run(t, exchangetest.Adapter{
			Protect: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config, h http.Handler) (http.Handler, error) {
				protect, err := idemhttp.New(engine, policy, cfg)
				if err != nil {
					return nil, err
				}
				return protect(h), nil
			},
			Status: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config) (http.Handler, error) {
				return idemhttp.StatusHandler(engine, policy, cfg)
			},
			Tokens: func(engine *idem.Engine, policy idem.Policy, ttl time.Duration) (http.Handler, error) {
				return idemhttp.TokenHandler(engine, policy, ttl)
			},
		})
	}
	_ = testMiddleware // go test runs it
	// Output:
}
