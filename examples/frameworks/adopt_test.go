// Package frameworks_test has the routes that docs/adopting.md shows for frameworks outside of the
// library.
package frameworks_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/go-chi/chi/v5"
	"github.com/gofiber/fiber/v3"
	"github.com/labstack/echo/v4"

	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemecho"
	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemfiber"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

type merchantKey struct{}

func merchantOf(ctx context.Context) (string, error) { return ctx.Value(merchantKey{}).(string), nil }

// authenticate stands for the service's own.
func authenticate(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		next.ServeHTTP(w, r.WithContext(context.WithValue(r.Context(), merchantKey{}, "merchant_demo")))
	})
}

func chiRoutes(engine *idem.Engine, pay http.HandlerFunc) (http.Handler, error) {
	protect, err := idemhttp.New(engine, idem.Policy{Name: "POST /payments", Scope: merchantOf, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		return nil, err
	}
	r := chi.NewRouter()
	r.Use(authenticate)
	r.With(protect).Post("/payments", pay)
	return r, nil
}

func echoRoutes(engine *idem.Engine, pay echo.HandlerFunc) (*echo.Echo, error) {
	merchant := func(ctx context.Context) (string, error) {
		return ctx.Value(idemecho.ContextKey{}).(echo.Context).Get("merchant").(string), nil
	}
	protect, err := idemecho.New(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		return nil, err
	}
	e := echo.New()
	e.POST("/payments", pay, authenticateEcho, protect)
	return e, nil
}

func authenticateEcho(next echo.HandlerFunc) echo.HandlerFunc {
	return func(c echo.Context) error {
		c.Set("merchant", "merchant_demo")
		return next(c)
	}
}

func fiberRoutes(engine *idem.Engine, pay fiber.Handler) (*fiber.App, error) {
	merchant := func(ctx context.Context) (string, error) {
		return fiber.Locals[string](ctx.Value(idemfiber.ContextKey{}).(fiber.Ctx), "merchant"), nil
	}
	protect, err := idemfiber.New(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		return nil, err
	}
	app := fiber.New()
	app.Post("/payments", authenticateFiber, protect, pay)
	return app, nil
}

func authenticateFiber(c fiber.Ctx) error {
	c.Locals("merchant", "merchant_demo")
	return c.Next()
}

// Each service pays once for one key, and its repeat is replayed.
func TestRoutesPayOnce(t *testing.T) {
	t.Parallel()
	for name, serve := range map[string]func(engine *idem.Engine, runs *int) (func(*http.Request) (*http.Response, error), error){
		"chi": func(engine *idem.Engine, runs *int) (func(*http.Request) (*http.Response, error), error) {
			h, err := chiRoutes(engine, func(w http.ResponseWriter, _ *http.Request) { *runs++; w.WriteHeader(http.StatusCreated) })
			return recorded(h), err
		},
		"Echo": func(engine *idem.Engine, runs *int) (func(*http.Request) (*http.Response, error), error) {
			e, err := echoRoutes(engine, func(c echo.Context) error { *runs++; return c.NoContent(http.StatusCreated) })
			return recorded(e), err
		},
		"Fiber": func(engine *idem.Engine, runs *int) (func(*http.Request) (*http.Response, error), error) {
			app, err := fiberRoutes(engine, func(c fiber.Ctx) error { *runs++; return c.SendStatus(http.StatusCreated) })
			return func(r *http.Request) (*http.Response, error) { return app.Test(r) }, err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, err := idem.New(memorylock.New(), memorystore.New())
			if err != nil {
				t.Fatal(err)
			}
			runs := 0
			send, err := serve(engine, &runs)
			if err != nil {
				t.Fatal(err)
			}
			for i := range 2 {
				r := httptest.NewRequestWithContext(t.Context(), http.MethodPost, "/payments", strings.NewReader(`{"amount":1250}`))
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Idempotency-Key", "order-1001")
				resp, err := send(r)
				if err != nil {
					t.Fatal(err)
				}
				_, _ = io.Copy(io.Discard, resp.Body)
				_ = resp.Body.Close()
				if replayed := resp.Header.Get("Idempotent-Replayed") == "true"; resp.StatusCode != http.StatusCreated || replayed != (i == 1) {
					t.Errorf("request %d = %d, replayed %v", i+1, resp.StatusCode, replayed)
				}
			}
			if runs != 1 {
				t.Errorf("paid %d times, want once", runs)
			}
		})
	}
}

func recorded(h http.Handler) func(*http.Request) (*http.Response, error) {
	return func(r *http.Request) (*http.Response, error) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Result(), nil
	}
}
