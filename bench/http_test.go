package bench

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/idempotency"
	"github.com/valyala/fasthttp"

	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// BenchmarkHTTP is a request to one route of a framework: bare, with its
// idempotency middleware and a fresh key, and as a replay. The frameworks are
// called directly, without a network. Fiber is not built on net/http and Gin is,
// so what is compared is not the request but what the middleware adds to it.
//
// Peer: Fiber v3's own middleware, on the lock and store in memory that it
// comes with, keeping results for a day as ours does. It looks the key up,
// locks it, looks again, runs the handler, and keeps status, body and all
// headers. It does not compare requests (another order under the same key is
// given the first one's receipt), knows no attempt, fence or outcome in doubt,
// and forgets the key where a handler fails.
func BenchmarkHTTP(b *testing.B) {
	b.Run("gin", func(b *testing.B) {
		gin.SetMode(gin.ReleaseMode)
		compareHTTP(b, func(b *testing.B, protected bool, r *runs) func(string) int {
			router := gin.New()
			if protected {
				router.Use(idemgin.MustNew(memoryEngine(b), policy))
			}
			router.POST("/pay", func(c *gin.Context) {
				r.Add(1)
				_, _ = io.Copy(io.Discard, c.Request.Body)
				c.Data(http.StatusCreated, "application/json", []byte(receipt))
			})
			return serveNetHTTP(router)
		})
	})
	b.Run("fiber", func(b *testing.B) {
		compareHTTP(b, func(_ *testing.B, protected bool, r *runs) func(string) int {
			app := fiber.New()
			if protected {
				app.Use(idempotency.New(idempotency.Config{KeyHeader: "Idempotency-Key", Lifetime: 24 * time.Hour}))
			}
			app.Post("/pay", func(c fiber.Ctx) error {
				r.Add(1)
				c.Set("Content-Type", "application/json")
				return c.Status(http.StatusCreated).SendString(receipt)
			})
			return serveFastHTTP(app.Handler())
		})
	})
}

// compareHTTP measures a framework. start returns what sends one request with a
// key and returns the status.
func compareHTTP(b *testing.B, start func(b *testing.B, protected bool, r *runs) (send func(key string) int)) {
	b.Helper()
	for _, bm := range []struct {
		name              string
		protected, replay bool
	}{{"bare", false, false}, {"fresh", true, false}, {"replay", true, true}} {
		b.Run(bm.name, func(b *testing.B) {
			var r runs
			send := start(b, bm.protected, &r)
			ks := newKeys()
			key := ks.next
			if bm.replay {
				key = ks.same
			}
			calls := alone(b, func() {
				if status := send(key()); status != http.StatusCreated {
					b.Fatalf("status %d, want %d", status, http.StatusCreated)
				}
			})
			if bm.replay {
				calls = 1
			}
			r.want(b, calls)
		})
	}
}

// discard is a response writer that costs next to nothing.
type discard struct {
	header http.Header
	status int
}

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(status int)      { d.status = status }
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

func serveNetHTTP(h http.Handler) func(key string) int {
	template := httptest.NewRequest(http.MethodPost, "/pay", nil)
	template.ContentLength = int64(len(order))
	return func(key string) int {
		r := template.Clone(template.Context())
		r.Body = io.NopCloser(strings.NewReader(order))
		r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {key}}
		w := &discard{header: make(http.Header)}
		h.ServeHTTP(w, r)
		return w.status
	}
}

// serveFastHTTP reuses the request, as fasthttp's server does.
func serveFastHTTP(h fasthttp.RequestHandler) func(key string) int {
	ctx := &fasthttp.RequestCtx{}
	return func(key string) int {
		ctx.Request.Reset()
		ctx.Response.Reset()
		ctx.ResetUserValues()
		ctx.Request.Header.SetMethod(http.MethodPost)
		ctx.Request.SetRequestURI("/pay")
		ctx.Request.Header.SetContentType("application/json")
		ctx.Request.Header.Set("Idempotency-Key", key)
		ctx.Request.SetBodyString(order)
		h(ctx)
		return ctx.Response.StatusCode()
	}
}
