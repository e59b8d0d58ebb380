//go:build !race

package frameworks_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/labstack/echo/v4"
	echomiddleware "github.com/labstack/echo/v4/middleware"

	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemecho"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Echo's Timeout changes an echo.Context that its goroutine still uses. So it races without Idemkeeper
// too, and the race detector is not for this test.

// Echo's Timeout runs the chain in a goroutine. Around the middleware nothing runs, and inside an answer
// in place of the handler's leaves the outcome in doubt.
func TestEchosTimeoutIsNoticed(t *testing.T) {
	t.Parallel()
	timeout := echomiddleware.TimeoutWithConfig(echomiddleware.TimeoutConfig{Timeout: 20 * time.Millisecond}) //nolint:staticcheck // some use it
	for name, tt := range map[string]struct {
		around, inside []echo.MiddlewareFunc
		runs           int32
		code           string
		event          telemetry.EventType
	}{
		"around": {[]echo.MiddlewareFunc{timeout}, nil, 0, `"internal"`, telemetry.EventRefused},
		"inside": {nil, []echo.MiddlewareFunc{timeout}, 1, `"outcome-unknown"`, telemetry.EventMisused},
	} {
		var events sync.Map
		engine, err := idem.New(memorylock.New(), memorystore.New(), idem.WithObserver(func(_ context.Context, e telemetry.Event) { events.Store(e.Type, true) }))
		if err != nil {
			t.Fatal(err)
		}
		protect, err := idemecho.New(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
		if err != nil {
			t.Fatal(err)
		}
		var runs atomic.Int32
		left, goOn := make(chan struct{}), make(chan struct{})
		e := echo.New()
		e.POST("/pay", func(echo.Context) error {
			defer close(left)
			runs.Add(1)
			<-goOn
			return nil
		}, append(append(tt.around, protect), tt.inside...)...)
		r := httptest.NewRequest(http.MethodPost, "/pay", http.NoBody)
		r.Header.Set("Idempotency-Key", "order-1001")
		w := httptest.NewRecorder()
		e.ServeHTTP(w, r)
		close(goOn)
		if tt.runs > 0 { // on a busy machine the goroutine of the handler may start after the time-out
			<-left
		}
		if _, seen := events.Load(tt.event); runs.Load() != tt.runs || !strings.Contains(w.Body.String(), tt.code) || !seen {
			t.Errorf("%s: %d runs, answer %d %q, event %t, want %d runs and %s", name, runs.Load(), w.Code, w.Body, seen, tt.runs, tt.code)
		}
		_ = engine.Close(context.Background())
	}
}
