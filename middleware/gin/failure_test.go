package idemgin_test

import (
	"errors"
	"net/http"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
)

// A failure that was only reported must not be replayed as the 200 that Gin
// answers where nobody renders it.
func TestReportedErrorsWithoutAResponseAreInDoubt(t *testing.T) {
	render := func(c *gin.Context) {
		c.Next()
		if len(c.Errors) > 0 && !c.Writer.Written() {
			c.JSON(-1, gin.H{"error": "rendered"})
		}
	}
	fails := func(c *gin.Context) { _ = c.Error(errors.New("bank is down")) }
	t.Run("nobody renders them", func(t *testing.T) {
		r := router(protect(t), fails)
		if live := send(r, "/p", "k1"); live.Code != 500 {
			t.Errorf("live %d, want 500", live.Code)
		}
		wantDoubt(t, send(r, "/p", "k1"))
	})
	t.Run("rendered outside", func(t *testing.T) {
		r := router(render, protect(t), fails)
		if live := send(r, "/p", "k1"); live.Code != 500 || !strings.Contains(live.Body.String(), "rendered") {
			t.Errorf("live = %d %q", live.Code, live.Body)
		}
		wantDoubt(t, send(r, "/p", "k1"))
	})
	t.Run("refused", func(t *testing.T) {
		r := router(protect(t), func(c *gin.Context) { c.Status(400); fails(c) })
		if live, again := send(r, "/p", "k1"), send(r, "/p", "k1"); live.Code != 400 || again.Code != 400 {
			t.Errorf("live %d, replayed %d, want 400", live.Code, again.Code)
		}
	})
	t.Run("rendered inside", func(t *testing.T) {
		r := router(protect(t), render, func(c *gin.Context) { c.Status(404); fails(c) })
		live, again := send(r, "/p", "k1"), send(r, "/p", "k1")
		if live.Code != 404 || again.Code != 404 || live.Body.String() != again.Body.String() || live.Body.Len() == 0 {
			t.Errorf("live = %d %q, replay = %d %q", live.Code, live.Body, again.Code, again.Body)
		}
	})
}

// Bug 21 of the field: a panic became 200.
func TestRecovery(t *testing.T) {
	boom := func(c *gin.Context) {
		c.Header("X-Handler", "1")
		c.String(201, "half")
		panic("boom")
	}
	for name, r := range map[string]http.Handler{
		"outside": router(gin.Recovery(), protect(t), boom),
		"inside":  router(protect(t), gin.CustomRecovery(func(c *gin.Context, _ any) { c.AbortWithStatus(500) }), boom),
	} {
		t.Run(name, func(t *testing.T) {
			live := send(r, "/p", "k1")
			if live.Code != 500 || live.Body.Len() != 0 || name == "outside" && live.Header().Get("X-Handler") != "" {
				t.Errorf("live = %d %q %v", live.Code, live.Body, live.Header())
			}
			wantDoubt(t, send(r, "/p", "k1"))
		})
	}
}
