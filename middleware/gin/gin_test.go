package idemgin_test

import (
	"compress/gzip"
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func newEngine(t testing.TB, opts ...idem.Option) *idem.Engine {
	t.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

func protect(t testing.TB, cfg ...exchange.Config) gin.HandlerFunc {
	t.Helper()
	return idemgin.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, cfg...)
}

func merchant(context.Context) (string, error) { return "m1", nil }

// send makes a request to a router without a listener.
func send(r http.Handler, path, key string, header ...string) *httptest.ResponseRecorder {
	req := httptest.NewRequest("POST", path, strings.NewReader(`{"amount":1}`))
	req.Header.Set("Content-Type", "application/json")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	for i := 0; i < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	return w
}

// wantDoubt checks what a client is told of a key in doubt.
func wantDoubt(t *testing.T, w *httptest.ResponseRecorder) {
	t.Helper()
	if w.Code != 409 || !strings.Contains(w.Body.String(), `"code":"outcome-unknown"`) || w.Header()["Idempotent-Replayed"] != nil {
		t.Errorf("answer = %d %q, %v, want outcome-unknown without the mark", w.Code, w.Body, w.Header())
	}
}

// Whatever a handler does, the live response is what Gin alone would send, and
// a replay has its status and body.
func TestLiveResponseIsThatOfGinAlone(t *testing.T) {
	handlers := map[string][]gin.HandlerFunc{
		"nothing":     {func(c *gin.Context) {}},
		"Status":      {func(c *gin.Context) { c.Status(204) }},
		"Status 202":  {func(c *gin.Context) { c.Status(202) }},
		"JSON":        {func(c *gin.Context) { c.JSON(201, gin.H{"id": "p1"}) }},
		"String":      {func(c *gin.Context) { c.String(200, "hi %d", 1) }},
		"Data":        {func(c *gin.Context) { c.Data(200, "image/png", []byte{1, 2}) }},
		"Redirect":    {func(c *gin.Context) { c.Redirect(303, "/done") }},
		"JSON 304":    {func(c *gin.Context) { c.JSON(304, gin.H{}) }},
		"header late": {func(c *gin.Context) { c.Status(201); c.Header("Location", "/1"); _, _ = c.Writer.WriteString("x") }},
		"header too late": {func(c *gin.Context) {
			c.String(200, "x")
			c.Header("Location", "/1")
		}},
		"Status 0":        {func(c *gin.Context) { c.Status(202); c.Status(0) }},
		"two failures":    {func(c *gin.Context) { c.String(500, "x"); c.Status(502) }},
		"two statuses":    {func(c *gin.Context) { c.Status(500); c.JSON(200, 1); c.Status(404) }},
		"abort":           {func(c *gin.Context) { c.AbortWithStatus(404) }, func(c *gin.Context) { c.String(200, "never") }},
		"abort with JSON": {func(c *gin.Context) { c.AbortWithStatusJSON(402, gin.H{"code": "poor"}) }},
		"abort with error": {func(c *gin.Context) {
			_ = c.AbortWithError(409, errors.New("conflict"))
		}},
		"two handlers": {
			func(c *gin.Context) { c.Header("X-First", "1"); c.Next(); _, _ = c.Writer.WriteString("!") },
			func(c *gin.Context) { c.String(200, "second") },
		},
		"cookies": {func(c *gin.Context) { c.SetCookie("a", "b", 1, "/", "", true, true); c.String(200, "x") }},
		"negotiated error": {func(c *gin.Context) {
			_ = c.Error(errors.New("logged only"))
			c.JSON(201, gin.H{"id": "p1"})
		}},
	}
	for name, chain := range handlers {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			type seen struct {
				status, size, errors int
				written, aborted     bool
			}
			var outside []seen
			look := func(c *gin.Context) {
				c.Next()
				outside = append(outside, seen{c.Writer.Status(), c.Writer.Size(), len(c.Errors), c.Writer.Written(), c.IsAborted()})
			}
			var inside []seen
			lookInside := func(c *gin.Context) {
				c.Next()
				inside = append(inside, seen{c.Writer.Status(), c.Writer.Size(), len(c.Errors), c.Writer.Written(), c.IsAborted()})
				if c.Writer.Pusher() != nil {
					t.Error("a recorder pushes")
				}
			}
			bare := send(router(append([]gin.HandlerFunc{look, lookInside}, chain...)...), "/p", "k1")
			protected := router(append([]gin.HandlerFunc{look, protect(t), lookInside}, chain...)...)
			live, again := send(protected, "/p", "k1"), send(protected, "/p", "k1")
			if live.Code != bare.Code || live.Body.String() != bare.Body.String() || !reflect.DeepEqual(live.Result().Header, bare.Result().Header) {
				t.Errorf("live = %d %q %v\nbare = %d %q %v", live.Code, live.Body, live.Result().Header, bare.Code, bare.Body, bare.Result().Header)
			}
			if bare.Code >= 500 { // the outcome is in doubt
				wantDoubt(t, again)
			} else if again.Code != bare.Code || again.Body.String() != bare.Body.String() || again.Header().Get("Idempotent-Replayed") != "true" {
				t.Errorf("replay = %d %q %v", again.Code, again.Body, again.Header())
			}
			if outside[0] != outside[1] {
				t.Errorf("middleware outside sees %+v, with Gin alone %+v", outside[1], outside[0])
			}
			if len(inside) != 2 || inside[0] != inside[1] {
				t.Errorf("middleware inside sees %+v, with Gin alone %+v", inside[1:], inside[0])
			}
			if !outside[2].aborted || !outside[2].written {
				t.Errorf("middleware outside sees %+v of a replay", outside[2])
			}
		})
	}
}

// gzipWriter is that of gin-contrib/gzip, in short.
type gzipWriter struct {
	gin.ResponseWriter
	z *gzip.Writer
}

func (g *gzipWriter) Write(p []byte) (int, error) {
	g.Header().Del("Content-Length")
	return g.z.Write(p)
}
func (g *gzipWriter) WriteString(s string) (int, error) { return g.Write([]byte(s)) }

func compress(c *gin.Context) {
	if c.GetHeader("Accept-Encoding") != "gzip" {
		return
	}
	c.Header("Content-Encoding", "gzip")
	z := gzip.NewWriter(c.Writer)
	c.Writer = &gzipWriter{c.Writer, z}
	c.Next()
	_ = z.Close()
}

func TestGzipOutside(t *testing.T) {
	r := router(compress, protect(t), func(c *gin.Context) { c.String(201, "plain") })
	for i, accept := range []string{"gzip", "", "gzip"} {
		w := send(r, "/p", "k1", "Accept-Encoding", accept)
		var body io.Reader = w.Body
		if accept == "gzip" {
			var err error
			if body, err = gzip.NewReader(w.Body); err != nil {
				t.Fatal(err)
			}
		}
		if got, _ := io.ReadAll(body); string(got) != "plain" || w.Code != 201 || w.Header().Get("Content-Encoding") != accept {
			t.Errorf("request %d: %d %q, Content-Encoding %q", i, w.Code, got, w.Header().Get("Content-Encoding"))
		}
	}
}

func TestScopeSeesWhatGinAndTheRequestCarry(t *testing.T) {
	type principal struct{}
	var got []any
	mw := idemgin.MustNew(newEngine(t), idem.Policy{Scope: func(ctx context.Context) (string, error) {
		got = []any{ctx.Value("merchant"), ctx.Value(principal{}), ctx.Value(gin.ContextKey) != nil, ctx.Value("nothing")}
		return "m1", nil
	}, InDoubt: idem.LeaveUnknown()})
	r := router(func(c *gin.Context) {
		c.Set("merchant", "m1")
		c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), principal{}, "alice"))
	}, mw, func(c *gin.Context) { c.String(200, c.GetString("merchant")) })
	if w := send(r, "/p", "k1"); w.Body.String() != "m1" {
		t.Errorf("handler = %q", w.Body)
	}
	if want := []any{"m1", "alice", true, nil}; !reflect.DeepEqual(got, want) {
		t.Errorf("Scope's context has %v, want %v", got, want)
	}
}

func TestRouteNamesThePolicy(t *testing.T) {
	var mu sync.Mutex
	routes := map[string]bool{}
	engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		mu.Lock()
		defer mu.Unlock()
		routes[ev.Route] = true
	}))
	r := gin.New()
	r.POST("/payments/:id", idemgin.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}), func(c *gin.Context) { c.Status(201) })
	send(r, "/payments/1", "k1")
	send(r, "/payments/2", "")
	if want := map[string]bool{"POST /payments/:id": true}; !reflect.DeepEqual(routes, want) {
		t.Errorf("routes = %v, want %v", routes, want)
	}
}

// The functions of a config have the request of the middleware, and not that of the handlers, with
// what Gin knows.
func TestFunctionsOfAConfigSeeWhatGinKnows(t *testing.T) {
	see := func(name string, r *http.Request) {
		c, _ := r.Context().Value(gin.ContextKey).(*gin.Context)
		// What Refuse wrote there would be a second answer.
		if r.Context().Value("merchant") != "m1" || (c == nil) != (name == "Refuse") || r.URL.Path != "/p" {
			t.Errorf("%s sees merchant %v, %s and Gin's context %v", name, r.Context().Value("merchant"), r.URL, c)
		}
	}
	seen := 0
	r := router(func(c *gin.Context) { c.Set("merchant", "m1") }, idemgin.MustNew(newEngine(t), idem.Policy{InDoubt: idem.LeaveUnknown()}, exchange.Config{
		Scope:     func(r *http.Request) (string, error) { seen++; see("Scope", r); return "m1", nil },
		Operation: func(r *http.Request) string { seen++; see("Operation", r); return "pay" },
		Refuse: func(w http.ResponseWriter, r *http.Request, _ *idem.Refusal) {
			seen++
			see("Refuse", r)
			_, _ = io.WriteString(w, "refused")
		},
	}), func(c *gin.Context) {
		c.Request.URL.Path = "/elsewhere"
		c.Data(409, "application/problem+json", []byte(`{"code":"in-progress"}`)) // another service's
	})
	if w := send(r, "/p", "k1"); w.Code != 409 || w.Body.String() != "refused" || seen != 3 {
		t.Errorf("answer = %d %q, %d functions called, want 3", w.Code, w.Body, seen)
	}
}

func TestContextIsPutBack(t *testing.T) {
	var before, after *http.Request
	var wBefore, wAfter gin.ResponseWriter
	r := router(func(c *gin.Context) {
		before, wBefore = c.Request, c.Writer
		c.Next()
		after, wAfter = c.Request, c.Writer
	}, protect(t), func(c *gin.Context) {
		if c.Writer == wBefore || c.Request == before {
			t.Error("the handler has the request and writer of the server")
		}
		if _, ok := idem.FromContext(c.Request.Context()); !ok {
			t.Error("the request's context is not that of an execution")
		}
		c.Status(200)
	})
	for range 2 {
		send(r, "/p", "k1")
		if before != after || wBefore != wAfter {
			t.Error("request or writer were not put back")
		}
	}
}

// What the suite finds to be wrong wiring makes the other forms panic.
func TestWrongWiringPanics(t *testing.T) {
	for name, fn := range map[string]func(){
		"no engine": func() { idemgin.MustNew(nil, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}) },
		"no scope":  func() { idemgin.MustStatusHandler(newEngine(t), idem.Policy{}) },
		"no time": func() {
			idemgin.MustTokenHandler(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, -1)
		},
	} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !strings.HasPrefix(err.Error(), "idemgin: ") {
					t.Errorf("%s: panic with %v", name, err)
				}
			}()
			fn()
		}()
	}
}
