package idemhttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

func TestWriteRefusal(t *testing.T) {
	t.Parallel()
	refusal := &idem.Refusal{Code: idem.CodeInProgress, RetryAfter: 1500 * time.Millisecond, Advice: "Wait.", Err: errors.New("secret")}
	for documentation, want := range map[string]string{
		"":      `{"title":"A request is outstanding for this Idempotency-Key","status":409,"detail":"Wait.","code":"in-progress"}`,
		"/keys": `{"type":"/keys#in-progress","title":"A request is outstanding for this Idempotency-Key","status":409,"detail":"Wait.","code":"in-progress"}`,
	} {
		w := httptest.NewRecorder()
		w.Header().Set("Content-Length", "7") // of the answer that the refusal takes the place of
		exchange.WriteRefusal(w, refusal, documentation)
		h := w.Header()
		if got := strings.TrimSpace(w.Body.String()); w.Code != 409 || got != want || h.Get("Retry-After") != "2" ||
			h.Get("Content-Type") != "application/problem+json" || h.Get("Cache-Control") != "no-store" || h["Content-Length"] != nil {
			t.Errorf("WriteRefusal() with documentation %q = %d %v %s, want %s", documentation, w.Code, h, got, want)
		}
	}
}

// A format may change some refusals, and leave the others to WriteRefusal.
func TestRefusalsOfAnotherFormatCanFallBack(t *testing.T) {
	t.Parallel()
	protect := idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant},
		exchange.Config{Refuse: func(w http.ResponseWriter, _ *http.Request, r *idem.Refusal) { exchange.WriteRefusal(w, r, "") }})
	w := httptest.NewRecorder()
	protect(http.NotFoundHandler()).ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	if w.Code != 400 || strings.Count(w.Body.String(), "key-missing") != 1 {
		t.Errorf("refusal = %d %s", w.Code, w.Body)
	}
}

// Clients choose the method of a request that matches no pattern. They must not
// choose how many routes there are in metrics.
func TestMadeUpMethodsAreOneRoute(t *testing.T) {
	var routes []string
	engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) { routes = append(routes, ev.Route) }))
	h := idemhttp.MustNew(engine, idem.Policy{Scope: merchant})(http.NotFoundHandler())
	for _, method := range []string{"BREW", "WHEN", "POST"} {
		h.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/", nil))
	}
	if want := []string{"other", "other", "POST"}; !slices.Equal(routes, want) {
		t.Errorf("routes = %q, want %q", routes, want)
	}
}
