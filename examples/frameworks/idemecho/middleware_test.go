package idemecho_test

import (
	"context"
	"net/http"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemecho"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
)

func TestMiddlewarePassesTheSuite(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options, h http.Handler) (http.Handler, error) {
			protect, err := idemecho.Middleware(engine, scoped(policy, o), config(o))
			if err != nil {
				return nil, err
			}
			return serve(echo.WrapHandler(h), protect), nil
		},
		Status: func(engine *idem.Engine, policy idem.Policy, o exchangetest.Options) http.Handler {
			h, err := idemecho.StatusHandler(engine, scoped(policy, o), config(o))
			if err != nil {
				t.Fatalf("StatusHandler() = %v", err)
			}
			return serve(h)
		},
		Beyond: map[string]string{
			"identity/an operation of its own name": "the example has no option for it",
			"choose/refusals in a format":           "the example has no option for it",
			"choose/a format that":                  "the example has no option for it",
			"early/a flush that sends nothing":      "echo.Response.Flush has no error",
			"write/103 Early Hints":                 firstStatus,
			"give up/a connection that cannot":      firstStatus,
			"give up/a panic in mid-body":           firstStatus,
			"give up/a panic that is recovered":     firstStatus,
			"give up/an error after the body":       firstStatus,
		},
	})
}

const firstStatus = "echo.Response takes the first status for the final one"

// scoped finds the scope as the suite's option says.
func scoped(policy idem.Policy, o exchangetest.Options) idem.Policy {
	if o.Scope != nil {
		policy.Scope = func(ctx context.Context) (string, error) {
			return o.Scope(ctx.Value(idemecho.ContextKey{}).(echo.Context).Request())
		}
	}
	return policy
}

func config(o exchangetest.Options) exchange.Config {
	cfg := exchange.Config{Header: o.Header, Replay: o.Replay, Compare: o.Compared, Methods: o.Methods,
		OptionalKey: o.Optional, Documentation: o.Documents}
	for _, p := range o.StatusPolicies {
		cfg.StatusPolicies = append(cfg.StatusPolicies, p.Policy.ForRoute(p.Route))
	}
	return cfg
}

// serve serves h on every path and method.
func serve(h echo.HandlerFunc, mw ...echo.MiddlewareFunc) http.Handler {
	e := echo.New()
	e.Logger.SetOutput(discard{})
	e.Any("/*", h, mw...)
	return e
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }
