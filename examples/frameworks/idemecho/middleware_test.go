package idemecho_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/labstack/echo/v4"

	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemecho"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMiddlewarePassesTheSuite(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config, h http.Handler) (http.Handler, error) {
			protect, err := idemecho.New(engine, policy, cfg)
			if err != nil {
				return nil, err
			}
			return serve(echo.WrapHandler(h), protect), nil
		},
		Status: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config) (http.Handler, error) {
			h, err := idemecho.StatusHandler(engine, policy, cfg)
			if err != nil {
				return nil, err
			}
			return serve(h), nil
		},
		Beyond: map[string]string{
			"early/a flush that sends nothing":  "echo.Response.Flush has no error",
			"write/103 Early Hints":             firstStatus,
			"give up/a connection that cannot":  firstStatus,
			"give up/a panic in mid-body":       firstStatus,
			"give up/a panic that is recovered": firstStatus,
			"give up/an error after the body":   firstStatus,
		},
	})
}

const firstStatus = "echo.Response takes the first status for the final one"

// serve serves h on every path and method.
func serve(h echo.HandlerFunc, mw ...echo.MiddlewareFunc) http.Handler {
	e := echo.New()
	e.Logger.SetOutput(discard{})
	e.Any("/*", h, mw...)
	return e
}

type discard struct{}

func (discard) Write(p []byte) (int, error) { return len(p), nil }

// What Echo answers without a route is no outcome, because a deployment may add the route.
func TestRequestsWithoutARoute(t *testing.T) {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	protect, err := idemecho.New(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		t.Fatal(err)
	}
	pay := func(c echo.Context) error { return c.NoContent(http.StatusCreated) }
	missing := func(echo.Context) error { return echo.ErrNotFound }
	old, current := echo.New(), echo.New()
	old.Use(protect)
	old.GET("/payments", pay)
	old.POST("/accounts", missing)
	current.POST("/payments", pay, protect)
	current.POST("/captures", pay, protect)
	current.POST("/accounts", pay, protect)
	send := func(e *echo.Echo, path string) *httptest.ResponseRecorder {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", path)
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		return w
	}
	for path, want := range map[string][2]int{"/payments": {405, 201}, "/captures": {404, 201}, "/accounts": {404, 404}} {
		for range 2 {
			if w := send(old, path); w.Code != want[0] {
				t.Errorf("POST %s = %d, want %d", path, w.Code, want[0])
			}
		}
		if w := send(current, path); w.Code != want[1] {
			t.Errorf("POST %s after the deployment = %d, want %d", path, w.Code, want[1])
		}
	}
}
