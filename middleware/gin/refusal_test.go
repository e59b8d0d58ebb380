package idemgin_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

func TestWriteRefusalEndsTheChain(t *testing.T) {
	t.Parallel()
	h := router(func(c *gin.Context) {
		idemgin.WriteRefusal(c, idem.NewRefusal(idem.CodeKeyReused, nil), idemgin.WithDocumentation("/keys"))
	}, func(*gin.Context) { t.Error("the next handler ran") })
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/", nil))
	if body := w.Body.String(); w.Code != 422 || !strings.Contains(body, `"type":"/keys#key-reused"`) ||
		w.Header().Get("Link") != `</keys#key-reused>; rel="describedby"; type="text/html"` {
		t.Errorf("WriteRefusal() = %d %v %s", w.Code, w.Header(), body)
	}
}

// A format that goes on with the chain does not run the handlers.
func TestARefusalRunsNoHandler(t *testing.T) {
	ran := false
	mw := protect(t, idemgin.WithRefusals(func(c *gin.Context, r *idem.Refusal) {
		_ = c.Error(r)
		c.Next()
		c.String(r.Code.HTTPStatus(), "refused")
	}))
	w := send(router(mw, func(*gin.Context) { ran = true }), "/p", "")
	if ran || w.Code != 400 || w.Body.String() != "refused" {
		t.Errorf("answer = %d %q, the handler ran: %v", w.Code, w.Body, ran)
	}
}

// Clients choose the method of a request that has no route. They must not choose
// how many routes there are in metrics.
func TestMadeUpMethodsAreOneRoute(t *testing.T) {
	var routes []string
	engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) { routes = append(routes, ev.Route) }))
	r := gin.New()
	r.Use(idemgin.Middleware(engine, idem.Policy{Scope: merchant}))
	for _, method := range []string{"BREW", "WHEN", "POST"} {
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(method, "/nowhere", nil))
	}
	if want := []string{"other", "other", "POST"}; !slices.Equal(routes, want) {
		t.Errorf("routes = %q, want %q", routes, want)
	}
}
