package idemfiber_test

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/gofiber/fiber/v3"
	"github.com/gofiber/fiber/v3/middleware/adaptor"
	"github.com/gofiber/fiber/v3/middleware/timeout"
	"github.com/valyala/fasthttp"

	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemfiber"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

const (
	keeps   = "Fiber keeps a response until the handler has returned"
	bridged = "the handlers of the suite inside and outside are not Fiber's"
)

func TestMiddlewarePassesTheSuite(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config, h http.Handler) (http.Handler, error) {
			protect, err := idemfiber.New(engine, policy, cfg)
			if err != nil {
				return nil, err
			}
			return serve(protect, handle(h)), nil
		},
		Status: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config) (http.Handler, error) {
			h, err := idemfiber.StatusHandler(engine, policy, cfg)
			if err != nil {
				return nil, err
			}
			return serve(h), nil
		},
		Beyond: map[string]string{
			"stream":                                keeps,
			"early/joined/an endless":               keeps,
			"fail/a refusal from another":           bridged,
			"early/joined/a response over":          keeps,
			"early/joined/a failure over":           keeps,
			"early/a writer whose response":         keeps,
			"early/panic after":                     keeps,
			"early/a handler that writes":           bridged,
			"early/a flush that sends":              bridged,
			"give up/a stream":                      keeps,
			"give up/a hijack":                      keeps,
			"give up/a connection that cannot":      keeps,
			"give up/a panic after":                 keeps,
			"give up/a panic that is recovered":     keeps,
			"refuse/an outcome that nobody knows":   keeps,
			"write/103 Early Hints":                 keeps,
			"write/trailers":                        keeps,
			"refuse/a body over the limit is":       keeps, // and reads a request before the handler runs
			"give up/a panic in mid-body":           bridged,
			"give up/an error after the body":       bridged,
			"identity/the handler reads the body":   bridged,
			"write/the handler sees":                bridged,
			"write/what middleware outside":         bridged,
			"identity/a body that was read":         bridged,
			"refuse/a body that":                    bridged,
			"without a key/a body that middleware":  bridged,
			"without a key/middleware that answers": bridged,
			"refuse/a limit further outside":        bridged,
		},
	})
}

// handle runs a handler of net/http in Fiber.
func handle(h http.Handler) fiber.Handler {
	return func(c fiber.Ctx) error {
		r, err := adaptor.ConvertRequest(c, true)
		if err != nil {
			return err
		}
		w := httptest.NewRecorder()
		r = r.WithContext(c.Context())
		h.ServeHTTP(w, r)
		if r.MultipartForm != nil { // a bridge takes the place of the server
			_ = r.MultipartForm.RemoveAll()
		}
		result := w.Result()
		for name, values := range result.Header {
			c.Response().Header.Del(name)
			for _, v := range values {
				c.Response().Header.Add(name, v)
			}
		}
		c.Status(result.StatusCode)
		_, err = io.Copy(c, result.Body)
		return err
	}
}

// serve serves handlers of Fiber on every path and method, to the suite's server.
func serve(handlers ...any) http.Handler {
	app := fiber.New()
	app.Use(func(c fiber.Ctx) error {
		c.SetContext(c.RequestCtx().UserValue("context").(context.Context))
		return c.Next()
	})
	app.All("/*", handlers[0], handlers[1:]...)
	run := app.Handler()
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var c fasthttp.RequestCtx
		request := &fasthttp.Request{}
		request.Header.SetMethod(r.Method)
		request.SetRequestURI(r.RequestURI)
		request.SetHost(r.Host)
		for name, values := range r.Header {
			for _, v := range values {
				request.Header.Add(name, v)
			}
		}
		body, err := io.ReadAll(r.Body)
		if err != nil {
			http.Error(w, "bad request", http.StatusBadRequest)
			return
		}
		request.SetBody(body)
		c.Init(request, nil, nil)
		c.SetUserValue("context", r.Context())
		run(&c)
		for name, value := range c.Response.Header.All() {
			w.Header().Add(string(name), string(value))
		}
		w.WriteHeader(c.Response.StatusCode())
		_, _ = w.Write(c.Response.Body())
	})
}

// protecting is the middleware on an engine of its own.
func protecting(t *testing.T, opts ...idem.Option) fiber.Handler {
	t.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	protect, err := idemfiber.New(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		t.Fatal(err)
	}
	return protect
}

func TestOverTheNetwork(t *testing.T) {
	protect := protecting(t)
	app := fiber.New()
	runs := 0
	app.Post("/pay", protect, func(c fiber.Ctx) error {
		runs++
		if _, err := idem.CheckOwner(c.Context()); err != nil {
			return err
		}
		c.Cookie(&fiber.Cookie{Name: "session", Value: "secret"})
		return c.Status(fiber.StatusCreated).JSON(fiber.Map{"echo": string(c.Body())})
	})
	app.Post("/fail", protect, func(fiber.Ctx) error { return fiber.ErrPaymentRequired })
	app.Post("/stream", protect, func(c fiber.Ctx) error { return c.SendStream(strings.NewReader("chunks")) })
	url := listen(t, app)

	type want struct {
		status   int
		body     string // a part of it
		replayed bool
	}
	for _, tt := range []struct {
		path, key string
		want      want
	}{
		{"/pay", "k1", want{201, `{"echo":"{\"amount\":1}"}`, false}},
		{"/pay", "k1", want{201, `{"echo":"{\"amount\":1}"}`, true}},
		{"/pay", "", want{400, `"code":"key-missing"`, false}},
		{"/fail", "k2", want{402, "Payment Required", false}},
		{"/fail", "k2", want{402, "Payment Required", true}},
		{"/stream", "k3", want{200, "chunks", false}},
		{"/stream", "k3", want{409, `"code":"result-unavailable"`, false}},
	} {
		resp, body := post(t, url+tt.path, tt.key)
		got := want{resp.StatusCode, body, resp.Header.Get(exchange.ReplayedHeader) == "true"}
		if got.status != tt.want.status || !strings.Contains(got.body, tt.want.body) || got.replayed != tt.want.replayed {
			t.Errorf("POST %s with key %q = %+v, want %+v", tt.path, tt.key, got, tt.want)
		}
		if cookie := resp.Header.Get("Set-Cookie"); (cookie != "") != (tt.path == "/pay" && got.status == 201 && !got.replayed) {
			t.Errorf("POST %s with key %q: Set-Cookie = %q", tt.path, tt.key, cookie)
		}
	}
	if runs != 1 {
		t.Errorf("the handler ran %d times, want once", runs)
	}
}

// What Fiber answers without a route is no outcome, because a deployment may add the route.
func TestRequestsWithoutARoute(t *testing.T) {
	protect := protecting(t)
	pay := func(c fiber.Ctx) error { return c.SendStatus(fiber.StatusCreated) }
	missing := func(fiber.Ctx) error { return fiber.ErrNotFound }
	old, current := fiber.New(), fiber.New()
	old.Use(protect)
	old.Get("/payments", pay)
	old.Post("/accounts", missing)
	current.Post("/payments", protect, pay)
	current.Post("/captures", protect, pay)
	current.Post("/accounts", protect, pay)
	before, after := listen(t, old), listen(t, current)
	for path, want := range map[string][2]int{"/payments": {405, 201}, "/captures": {404, 201}, "/accounts": {404, 404}} {
		for range 2 {
			if resp, _ := post(t, before+path, path); resp.StatusCode != want[0] {
				t.Errorf("POST %s = %d, want %d", path, resp.StatusCode, want[0])
			}
		}
		if resp, _ := post(t, after+path, path); resp.StatusCode != want[1] {
			t.Errorf("POST %s after the deployment = %d, want %d", path, resp.StatusCode, want[1])
		}
	}
}

// A body that was read from its stream in front must not pass for an empty one.
func TestBodyStreamThatWasRead(t *testing.T) {
	protect := protecting(t)
	app := fiber.New(fiber.Config{StreamRequestBody: true, BodyLimit: 4})
	read := func(c fiber.Ctx) error {
		_, _ = io.Copy(io.Discard, c.Request().BodyStream())
		return c.Next()
	}
	pay := func(c fiber.Ctx) error { return c.Status(fiber.StatusCreated).Send(c.Body()) }
	app.Post("/pay", protect, pay)
	app.Post("/read", read, protect, pay)
	url := listen(t, app)
	if resp, body := post(t, url+"/pay", "k1"); resp.StatusCode != 201 || body != `{"amount":1}` {
		t.Errorf("answer = %d %s, want 201 with the body", resp.StatusCode, body)
	}
	if resp, body := post(t, url+"/read", "k2"); resp.StatusCode != 500 {
		t.Errorf("answer to a body that was read = %d %s, want 500", resp.StatusCode, body)
	}
}

// A time-out that answers for a handler that still runs does not give the key back, on either side.
func TestTimeoutOfFiberLeavesTheOutcomeInDoubt(t *testing.T) {
	for _, status := range []int{0, 408, 429, 403, 503} { // 0 leaves the answer to Fiber
		for side, around := range map[string]func(limit timeout.Config, protect, pay fiber.Handler) []any{
			"inside": func(limit timeout.Config, protect, pay fiber.Handler) []any {
				return []any{protect, timeout.New(pay, limit)}
			},
			"outside": func(limit timeout.Config, protect, pay fiber.Handler) []any {
				return []any{timeout.New(protect, limit), pay}
			},
		} {
			t.Run(fmt.Sprint(status, side), func(t *testing.T) {
				misused := make(chan error, 8)
				protect := protecting(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
					if ev.Type == telemetry.EventMisused {
						misused <- ev.Err
					}
				}))
				limit := timeout.Config{Timeout: 20 * time.Millisecond}
				if status != 0 {
					limit.OnTimeout = func(c fiber.Ctx) error { return c.Status(status).SendString("slow down") }
				}
				var runs atomic.Int32
				ends := make(chan struct{})
				end := sync.OnceFunc(func() { close(ends) })
				t.Cleanup(end)
				handlers := around(limit, protect, func(fiber.Ctx) error { runs.Add(1); <-ends; return nil })
				app := fiber.New()
				app.Post("/pay", handlers[0], handlers[1:]...)
				url := listen(t, app)
				post(t, url+"/pay", "k1")
				end() // outside, the outcome is settled once the handler has returned
				if runs.Load() == 1 {
					<-misused
				}
				for range 2 {
					post(t, url+"/pay", "k1")
				}
				if n := runs.Load(); n > 1 { // none if the time-out was over before
					t.Errorf("the handler ran %d times, want once at most", n)
				}
			})
		}
	}
}

func post(t *testing.T, url, key string) (*http.Response, string) {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url, bytes.NewReader([]byte(`{"amount":1}`)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Content-Type", "application/json")
	if key != "" {
		r.Header.Set(exchange.DefaultHeader, key)
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("POST %s: %v", url, err)
	}
	return resp, string(body)
}

// listen serves the app on a port of its own.
func listen(t *testing.T, app *fiber.App) (url string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
	t.Cleanup(func() {
		if err := app.ShutdownWithTimeout(10 * time.Second); err != nil {
			t.Errorf("ShutdownWithTimeout() = %v", err)
		}
		if err := <-served; err != nil {
			t.Errorf("Listener() = %v", err)
		}
	})
	return "http://" + l.Addr().String()
}

// c.End writes to the connection by itself, and early hints may tell of a success.
func TestNothingIsSentBeforeTheOutcomeIsSettled(t *testing.T) {
	t.Parallel()
	for name, pay := range map[string]fiber.Handler{
		"c.End":                   func(c fiber.Ctx) error { _ = c.Status(201).SendString("paid"); return c.End() },
		"c.End without its error": func(c fiber.Ctx) error { _ = c.Status(201).SendString("paid"); _ = c.End(); return nil },
		"c.SendEarlyHints":        func(c fiber.Ctx) error { _ = c.SendEarlyHints([]string{"</paid>"}); return c.SendString("paid") },
	} {
		app := fiber.New()
		refused, err := idemfiber.New(exchangetest.RefusingCommit(t), idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
		if err != nil {
			t.Fatal(err)
		}
		app.Post("/pay", refused, func(c fiber.Ctx) error {
			if _, err := idem.JoinedTxOf(c.Context()); err != nil {
				t.Errorf("JoinedTxOf() = %v", err)
			}
			return pay(c)
		})
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		go func() { _ = app.Listener(l, fiber.ListenConfig{DisableStartupMessage: true}) }()
		conn, err := net.Dial("tcp", l.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		_, _ = io.WriteString(conn, "POST /pay HTTP/1.1\r\nHost: x\r\nIdempotency-Key: k1\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
		got, err := io.ReadAll(conn)
		if err != nil || bytes.Contains(got, []byte("paid")) || !bytes.HasPrefix(got, []byte("HTTP/1.1 50")) {
			t.Errorf("%s: the client got %q, %v, want a failure and nothing of the success", name, got, err)
		}
		_ = conn.Close()
		if err := app.Shutdown(); err != nil {
			t.Errorf("Shutdown() = %v", err)
		}
	}
}
