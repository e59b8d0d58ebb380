package frameworks_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	chimiddleware "github.com/go-chi/chi/v5/middleware"
	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"

	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemecho"
	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Time-outs that have a writer to themselves, or only end the context, may be outside. Whether the outcome is stored or
// in doubt, no repeat runs the handler again. Inside they do not pay twice either, but may lose the answer.
// Echo's Timeout belongs on neither side, because Echo reuses the echo.Context of a handler that still runs.
func TestTimeoutsThatPayOnce(t *testing.T) {
	t.Parallel()
	const limit = 20 * time.Millisecond
	handler := func(next http.Handler) http.Handler { return http.TimeoutHandler(next, limit, "time-out") }
	chiTimeout := chimiddleware.Timeout(limit)
	echoContext := echomiddleware.ContextTimeout(limit)
	policy := idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}
	plain := func(inside, outside func(http.Handler) http.Handler) func(*idem.Engine, http.Handler) (http.Handler, error) {
		return func(engine *idem.Engine, pay http.Handler) (http.Handler, error) {
			protect, err := idemhttp.New(engine, policy)
			if err != nil {
				return nil, err
			}
			return outside(protect(inside(pay))), nil
		}
	}
	none := func(next http.Handler) http.Handler { return next }
	onEcho := func(inside, outside []echo.MiddlewareFunc) func(*idem.Engine, http.Handler) (http.Handler, error) {
		return func(engine *idem.Engine, pay http.Handler) (http.Handler, error) {
			protect, err := idemecho.New(engine, policy)
			e := echo.New()
			e.POST("/pay", echo.WrapHandler(pay), append(append(outside, protect), inside...)...)
			return e, err
		}
	}
	for name, serve := range map[string]func(*idem.Engine, http.Handler) (http.Handler, error){
		"http.TimeoutHandler outside": plain(none, handler),
		"http.TimeoutHandler inside":  plain(handler, none),
		"chi's Timeout outside":       plain(none, chiTimeout),
		"chi's Timeout inside":        plain(chiTimeout, none),
		"http.TimeoutHandler around Gin": func(engine *idem.Engine, pay http.Handler) (http.Handler, error) {
			protect, err := idemgin.New(engine, policy)
			r := gin.New()
			r.POST("/pay", protect, gin.WrapH(pay))
			return handler(r), err
		},
		"Echo's ContextTimeout outside": onEcho(nil, []echo.MiddlewareFunc{echoContext}),
		"Echo's ContextTimeout inside":  onEcho([]echo.MiddlewareFunc{echoContext}, nil),
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, err := idem.New(memorylock.New(), memorystore.New())
			if err != nil {
				t.Fatal(err)
			}
			var runs atomic.Int32
			h, err := serve(engine, http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
				runs.Add(1)
				over, cancel := context.WithTimeout(context.Background(), 2*limit)
				defer cancel()
				<-over.Done() // longer than the limit
				w.WriteHeader(http.StatusCreated)
			}))
			if err != nil {
				t.Fatal(err)
			}
			server := httptest.NewServer(h)
			t.Cleanup(server.Close)
			var statuses []int
			for range 4 {
				r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/pay", strings.NewReader(`{"amount":1}`))
				if err != nil {
					t.Fatal(err)
				}
				r.Header.Set("Content-Type", "application/json")
				r.Header.Set("Idempotency-Key", "order-1001")
				resp, err := http.DefaultClient.Do(r)
				if err != nil {
					t.Fatal(err)
				}
				_ = resp.Body.Close()
				statuses = append(statuses, resp.StatusCode)
			}
			if err := engine.Close(context.Background()); err != nil {
				t.Errorf("Close() = %v", err)
			}
			if n := runs.Load(); n > 1 {
				t.Errorf("the handler ran %d times, want once; answers %v", n, statuses)
			}
		})
	}
}
