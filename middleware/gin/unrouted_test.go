package idemgin_test

import (
	"net/http"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// What Gin answers without a route is no outcome, because a deployment may add the route. A handler
// for requests without a route, such as a proxy, is protected.
func TestRequestsWithoutARoute(t *testing.T) {
	t.Parallel()
	protect := idemgin.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	runs := 0
	pay := func(c *gin.Context) { runs++; c.Status(http.StatusCreated) }
	old, current := gin.New(), gin.New()
	old.HandleMethodNotAllowed = true
	old.Use(protect)
	old.GET("/payments", pay)
	current.Use(protect)
	current.POST("/payments", pay)
	current.NoRoute(pay)
	for path, want := range map[string]int{"/payments": 405, "/captures": 404} {
		for range 2 {
			if w := send(old, path, "k"+path); w.Code != want || w.Body.Len() == 0 || w.Header().Get("Idempotent-Replayed") != "" {
				t.Errorf("POST %s = %d %q, want Gin's %d", path, w.Code, w.Body, want)
			}
		}
		for i := range 2 {
			if w := send(current, path, "k"+path); w.Code != 201 || (w.Header().Get("Idempotent-Replayed") != "") != (i > 0) {
				t.Errorf("POST %s after the deployment = %d %v, want 201", path, w.Code, w.Header())
			}
		}
	}
	if runs != 2 {
		t.Errorf("the handlers ran %d times, want once for each key", runs)
	}
}

// A handler for requests without a route may have had an effect, whatever it answers.
func TestRequestsWithoutARouteThatPassTheGate(t *testing.T) {
	t.Parallel()
	for name, proxy := range map[string]func(c *gin.Context){
		"a downstream key": func(c *gin.Context) { _, _ = idem.DownstreamKey(c.Request.Context(), "bank") },
		"the gate":         func(c *gin.Context) { _, _ = idem.CheckOwner(c.Request.Context()) },
		"the fence":        func(c *gin.Context) { _, _ = idem.FromContext(c.Request.Context()) },
	} {
		runs := 0
		r := gin.New()
		r.Use(idemgin.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}))
		r.NoRoute(func(c *gin.Context) {
			runs++
			proxy(c)
			c.String(http.StatusNotFound, "no such account")
		})
		for range 2 {
			w := send(r, "/payments", "k1")
			if runs != 1 {
				t.Fatalf("after %s the handler ran %d times", name, runs)
			}
			wantDoubt(t, w)
		}
	}
}
