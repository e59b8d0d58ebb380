package idemgin_test

import (
	"context"
	"net/http/httptest"
	"slices"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// Clients choose the method of a request that has no route. They must not choose
// how many routes there are in metrics.
func TestMadeUpMethodsAreOneRoute(t *testing.T) {
	var routes []string
	engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) { routes = append(routes, ev.Route) }))
	r := gin.New()
	r.Use(idemgin.MustNew(engine, idem.Policy{Scope: merchant}))
	for _, method := range []string{"BREW", "WHEN", "POST"} {
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/nowhere", nil))
	}
	if want := []string{"other", "other", "POST"}; !slices.Equal(routes, want) {
		t.Errorf("routes = %q, want %q", routes, want)
	}
}
