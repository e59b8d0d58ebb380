package idemgin_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// forked runs the chain in a goroutine, as time-outs do.
func forked(c *gin.Context) {
	done := make(chan struct{})
	go func() { defer close(done); c.Next() }()
	<-done
}

// Middleware in front that runs the chain in a goroutine is refused before anything is consumed. A router
// that runs in a goroutine as a whole is not.
func TestChainInAGoroutine(t *testing.T) {
	t.Parallel()
	var refused []error
	engine, err := idem.New(memorylock.New(), memorystore.New(), idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		if ev.Type == telemetry.EventRefused {
			refused = append(refused, ev.Err)
		}
	}))
	if err != nil {
		t.Fatal(err)
	}
	protect := idemgin.MustNew(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
	runs := 0
	pay := func(c *gin.Context) { runs++; c.String(http.StatusCreated, "paid") }
	r := gin.New()
	r.POST("/forked", forked, protect, pay)
	r.GET("/forked", forked, protect, pay)
	deep := []gin.HandlerFunc{}
	for range 40 {
		deep = append(deep, func(c *gin.Context) { c.Next() })
	}
	r.POST("/deep", append(deep, protect, pay)...)
	r.POST("/again", func(c *gin.Context) { c.Request.URL.Path = "/deep"; r.HandleContext(c) })
	for _, tt := range []struct {
		name, method, path string
		h                  http.Handler
		status             int
	}{
		{"a chain in a goroutine", "POST", "/forked", r, 500},
		{"a method without keys", "GET", "/forked", r, 201},
		{"a long chain", "POST", "/deep", r, 201},
		{"a chain that begins again", "POST", "/again", r, 201},
		{"a router in a goroutine", "POST", "/deep", http.TimeoutHandler(r, time.Minute, ""), 201},
		{"a context of a test", "POST", "/deep", http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, _ := gin.CreateTestContext(w)
			c.Request = r
			protect(c)
		}), 200},
	} {
		before := runs
		req := httptest.NewRequestWithContext(t.Context(), tt.method, tt.path, strings.NewReader("{}"))
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", strings.ReplaceAll(tt.name, " ", "-"))
		w := httptest.NewRecorder()
		tt.h.ServeHTTP(w, req)
		if w.Code != tt.status || tt.status == 500 && (runs != before || len(refused) != 1 || !strings.Contains(refused[0].Error(), "HandlerTimeout")) {
			t.Errorf("%s: answer = %d %s, runs %d, refused %v, want %d", tt.name, w.Code, w.Body, runs-before, refused, tt.status)
		}
	}
}
