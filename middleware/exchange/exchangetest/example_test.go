package exchangetest_test

import (
	"net/http"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// The tests of an adapter run the suite. Beyond names what the framework cannot do. The
// suite_test.go of the adapter for Gin has all options.
func ExampleRun() {
	testMiddleware := func(t *testing.T) { // TestMiddleware
		exchangetest.Run(t, exchangetest.Adapter{
			Protect: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options, h http.Handler) (http.Handler, error) {
				protect, err := idemhttp.New(engine, policy, idemhttp.WithHeader(o.Header), idemhttp.WithReplayHeaders(o.Replay...))
				if err != nil {
					return nil, err
				}
				return protect(h), nil
			},
		})
	}
	_ = testMiddleware // go test runs it
	// Output:
}
