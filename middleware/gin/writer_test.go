package idemgin_test

import (
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// An informational status is not that of the response.
func TestInformationalStatusIsNotNoted(t *testing.T) {
	r := router(protect(t), func(c *gin.Context) {
		for _, status := range []int{100, 103} {
			if c.Writer.WriteHeader(status); c.Writer.Status() != 200 {
				t.Errorf("Status() after %d = %d, want 200", status, c.Writer.Status())
			}
		}
	})
	send(r, "/p", "k1")
}

// A response of which the client has a part stays written when it is given up.
func TestStreamThatIsGivenUpStaysWritten(t *testing.T) {
	srv := httptest.NewServer(router(protect(t), func(c *gin.Context) {
		c.Data(200, "text/event-stream", []byte("part"))
		c.Writer.Flush()
		if c.Writer.WriteHeader(500); !c.Writer.Written() || c.Writer.Size() != len("part") || c.Writer.Status() != 500 {
			t.Errorf("written %v, size %d, status %d, want the part, and 500", c.Writer.Written(), c.Writer.Size(), c.Writer.Status())
		}
	}))
	defer srv.Close()
	req, _ := http.NewRequestWithContext(t.Context(), http.MethodPost, srv.URL, http.NoBody)
	req.Header.Set("Idempotency-Key", "k1")
	resp, err := srv.Client().Do(req)
	if err != nil {
		return
	}
	defer resp.Body.Close()
	if body, err := io.ReadAll(resp.Body); err == nil {
		t.Errorf("the client took %q for a whole response", body)
	}
}

// As with Gin alone, a connection counts as a response once it was hijacked, and cannot be hijacked
// after a part of the body.
func TestHijack(t *testing.T) {
	engine := newEngine(t)
	r := gin.New()
	mw := idemgin.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	r.POST("/hijack", mw, func(c *gin.Context) {
		conn, _, err := c.Writer.Hijack()
		if err != nil {
			t.Errorf("Hijack() = %v", err)
			return
		}
		conn.Close()
		_ = c.Error(errors.New("for logs"))
		if !c.Writer.Written() || c.Writer.Size() != 0 {
			t.Errorf("written %v, size %d, want an empty response", c.Writer.Written(), c.Writer.Size())
		}
	})
	r.POST("/late", mw, func(c *gin.Context) {
		c.String(200, "part")
		if _, _, err := c.Writer.Hijack(); err == nil || errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack() after a part of the body = %v, want it too late", err)
		}
	})
	srv := httptest.NewServer(r)
	defer srv.Close()
	for i, path := range []string{"/hijack", "/late", "/late"} {
		req := httptest.NewRequest(http.MethodPost, srv.URL+path, strings.NewReader("{}"))
		req.RequestURI = ""
		req.Header.Set("Idempotency-Key", path)
		resp, err := srv.Client().Do(req)
		if err == nil {
			resp.Body.Close()
		}
		if (err == nil) != (path == "/late") {
			t.Fatalf("%s: error = %v", path, err)
		}
		if i == 2 && (resp.StatusCode != 200 || resp.Header.Get("Idempotent-Replayed") != "true") {
			t.Errorf("repeat after a hijack that was too late = %d, want the response replayed", resp.StatusCode)
		}
	}
	// The handler has closed the connection before its end.
	for start := time.Now(); ; runtime.Gosched() {
		got, err := engine.Status(t.Context(), "m1", "/hijack")
		if err == nil && got.State == driver.StateCompleted {
			break
		}
		if time.Since(start) > 10*time.Second || err != nil || got.State == driver.StateUnknown {
			t.Fatalf("state = %v, %v, want completed", got.State, err)
		}
	}
}
