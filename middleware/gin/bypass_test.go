package idemgin_test

import (
	"errors"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// HandleContext puts Gin's own writer back into the context, so that the response
// passes the middleware by. Repeats must not get an empty one in its place.
func TestHandleContextIsAResponseThatWasNotKept(t *testing.T) {
	for name, tt := range map[string]struct {
		target gin.HandlerFunc
		status int
		body   string
		state  idem.State
		again  string // code
	}{
		"success":  {func(c *gin.Context) { c.String(201, "paid") }, 201, "paid", idem.StateCompleted, "result-unavailable"},
		"no body":  {func(c *gin.Context) { c.Status(204); c.Writer.WriteHeaderNow() }, 204, "", idem.StateCompleted, "result-unavailable"},
		"failure":  {func(c *gin.Context) { c.String(502, "bank is down") }, 502, "bank is down", idem.StateUnknown, "outcome-unknown"},
		"not paid": {func(c *gin.Context) { c.String(429, "later") }, 429, "later", idem.StateReleased, ""},
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			r := gin.New()
			mw := idemgin.Middleware(engine, idem.Policy{Scope: merchant})
			r.POST("/old", mw, func(c *gin.Context) {
				c.Request.URL.Path = "/new"
				r.HandleContext(c)
			})
			r.POST("/new", mw, tt.target)
			live := send(r, "/old", "k1")
			if live.Code != tt.status || live.Body.String() != tt.body {
				t.Errorf("live = %d %q, want %d %q", live.Code, live.Body, tt.status, tt.body)
			}
			if got, err := engine.Status(t.Context(), "m1", "k1"); err != nil || got.State != tt.state {
				t.Errorf("state = %v, %v, want %v", got.State, err, tt.state)
			}
			again := send(r, "/old", "k1")
			if tt.again == "" {
				if again.Code != tt.status || again.Body.String() != tt.body {
					t.Errorf("again = %d %q, want %d %q", again.Code, again.Body, tt.status, tt.body)
				}
			} else if again.Code != 409 || !strings.Contains(again.Body.String(), `"code":"`+tt.again+`"`) {
				t.Errorf("again = %d %q, want %s", again.Code, again.Body, tt.again)
			}
		})
	}
}

// A problem that passed the middleware by may be a refusal. It is not told as the outcome.
func TestProblemFromHandleContextIsBrokenOff(t *testing.T) {
	engine := newEngine(t)
	r := gin.New()
	r.POST("/old", idemgin.Middleware(engine, idem.Policy{Scope: merchant}), func(c *gin.Context) {
		c.Request.URL.Path = "/new"
		r.HandleContext(c)
	})
	r.POST("/new", func(c *gin.Context) { c.Data(409, "application/problem+json", []byte(`{"code":"in-progress"}`)) })
	func() {
		defer func() {
			if err, _ := recover().(error); !errors.Is(err, http.ErrAbortHandler) {
				t.Errorf("panic = %v, want %v", err, http.ErrAbortHandler)
			}
		}()
		send(r, "/old", "k1")
	}()
	if again := send(r, "/old", "k1"); again.Code != 409 || !strings.Contains(again.Body.String(), `"code":"outcome-unknown"`) {
		t.Errorf("again = %d %q, want outcome-unknown", again.Code, again.Body)
	}
}

// A panic after a response that passed the middleware by breaks the connection off,
// as after one that was streamed.
func TestPanicAfterHandleContext(t *testing.T) {
	engine := newEngine(t)
	r := gin.New()
	r.POST("/old", gin.Recovery(), idemgin.Middleware(engine, idem.Policy{Scope: merchant}), func(c *gin.Context) {
		c.Request.URL.Path = "/new"
		r.HandleContext(c)
	})
	r.POST("/new", func(c *gin.Context) {
		c.String(201, "half")
		panic("boom")
	})
	srv := httptest.NewServer(r)
	defer srv.Close()
	req := httptest.NewRequest("POST", srv.URL+"/old", nil)
	req.RequestURI = ""
	req.Header.Set("Idempotency-Key", "k1")
	if resp, err := srv.Client().Do(req); err == nil {
		resp.Body.Close()
		t.Errorf("answer = %d, want a connection that is broken off", resp.StatusCode)
	}
	if got, err := engine.Status(t.Context(), "m1", "k1"); err != nil || got.State != idem.StateUnknown {
		t.Errorf("state = %v, %v, want unknown", got.State, err)
	}
}
