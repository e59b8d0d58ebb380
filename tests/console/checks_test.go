package console_test

import (
	"context"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/console"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A check of the service that panics fails, and the process and the other lines live on.
func TestCheckThatPanics(t *testing.T) {
	t.Parallel()
	c := console.MustNew(newEngine(t, memorylock.New(), memorystore.New()), authorise, console.Config{Logger: slog.New(slog.DiscardHandler),
		Checks: []console.Check{{Name: "Bank", Look: func(context.Context) (console.Level, string) { panic("boom") }}}})
	w, req := httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/health", nil)
	req.SetBasicAuth("ada", "secret")
	c.ServeHTTP(w, req)
	if page := w.Body.String(); w.Code != http.StatusOK || !strings.Contains(page, "The check panicked.") || !strings.Contains(page, "The lock service gives out locks.") {
		t.Errorf("the page of a check that panics is %d\n%s", w.Code, page)
	}
}
