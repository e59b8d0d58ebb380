package idemhttp_test

import (
	"net/http"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func options(o exchangetest.Options) []idemhttp.Option {
	opts := []idemhttp.Option{nil, idemhttp.WithHeader(o.Header), idemhttp.WithReplayHeaders(o.Replay...)}
	if o.Scope != nil {
		opts = append(opts, idemhttp.WithScope(o.Scope))
	}
	if o.Operation != nil {
		opts = append(opts, idemhttp.WithOperation(o.Operation))
	}
	opts = append(opts, idemhttp.WithComparedHeaders(o.Compared...), idemhttp.WithDocumentation(o.Documents))
	if o.Methods != nil {
		opts = append(opts, idemhttp.WithMethods(o.Methods...))
	}
	if o.Optional {
		opts = append(opts, idemhttp.WithOptionalKey())
	}
	if o.Refusals != nil {
		opts = append(opts, idemhttp.WithRefusals(o.Refusals))
	}
	for _, p := range o.StatusPolicies {
		opts = append(opts, idemhttp.WithStatusPolicy(p.Route, p.Policy))
	}
	return opts
}

func TestMiddleware(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options, h http.Handler) (http.Handler, error) {
			mw, err := idemhttp.New(engine, policy, options(o)...)
			if err != nil {
				return nil, err
			}
			return mw(h), nil
		},
		Status: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options) http.Handler {
			return idemhttp.StatusHandler(engine, policy, options(o)...)
		},
		Tokens: func(engine *idem.Engine, policy idem.Policy, ttl time.Duration) http.Handler {
			return idemhttp.TokenHandler(engine, policy, ttl)
		},
	})
}
