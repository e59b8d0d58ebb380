package idemgin_test

import (
	"bytes"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// forwarding serves every path with a chain whose last handler hands the request to the target by
// HandleContext. Gin then puts its own writer back into the context.
func forwarding(target gin.HandlerFunc, chain ...gin.HandlerFunc) *gin.Engine {
	to := router(target)
	return router(append(chain, func(c *gin.Context) { to.HandleContext(c) })...)
}

// What HandleContext answers is kept until the outcome is settled, as any other response.
func TestHandleContextSendsNothingBeforeTheOutcomeIsSettled(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("paid, ", 50_000)
	answers := map[string]gin.HandlerFunc{
		"short":   func(c *gin.Context) { c.String(201, "paid") },
		"flushed": func(c *gin.Context) { c.String(201, "paid"); c.Writer.Flush() },
		"long":    func(c *gin.Context) { c.String(201, long) },
		"of its length": func(c *gin.Context) {
			c.DataFromReader(201, int64(len(long)), "text/plain", strings.NewReader(long), nil)
		},
		"an event":   func(c *gin.Context) { c.SSEvent("message", "paid"); c.Writer.Flush() },
		"a redirect": func(c *gin.Context) { c.Redirect(303, "/paid") },
		"no body":    func(c *gin.Context) { c.Header("Location", "/paid"); c.Status(204) },
	}
	around := map[string]gin.HandlerFunc{"a recovery": gin.Recovery(), "a compressor": compress}
	for name, answer := range answers {
		for outside, outer := range around {
			t.Run(name+", with "+outside+" outside", func(t *testing.T) {
				t.Parallel()
				target := func(c *gin.Context) {
					if _, err := idem.JoinedTxOf(c.Request.Context()); err != nil {
						t.Errorf("JoinedTxOf() = %v", err)
					}
					answer(c)
				}
				mw := idemgin.MustNew(exchangetest.RefusingCommit(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
				srv := httptest.NewServer(forwarding(target, outer, mw))
				defer srv.Close()
				status, body, err := post(t, srv, "k1")
				if err != nil || status != 503 || strings.Contains(body, "paid") || !strings.Contains(body, `"unavailable"`) {
					t.Errorf("answer = %d %.200q, %v, want unavailable", status, body, err)
				}
			})
		}
	}
}

const (
	whole = "what HandleContext answers is kept as a whole"
	gins  = "Gin's own writer does otherwise"
)

// Gin's writer takes the place of this package's in the whole suite, and nothing else changes.
func TestHandleContextPassesTheSuite(t *testing.T) {
	exchangetest.Run(t, exchangetest.Adapter{
		Protect: func(engine *idem.Engine, policy idem.Policy, cfg exchange.Config, h http.Handler) (http.Handler, error) {
			mw, err := idemgin.New(engine, policy, cfg)
			if err != nil {
				return nil, err
			}
			return forwarding(gin.WrapH(h), mw), nil
		},
		Status: status,
		Beyond: map[string]string{
			"stream":                           whole,
			"give up/a stream":                 whole,
			"give up/a hijack":                 whole,
			"give up/a panic":                  whole,
			"give up/an error after":           gins,
			"give up/a connection that cannot": gins,
			"early/panic after":                whole,
			"early/a flush that sends":         gins,
			"early/a handler that writes more": whole,
			"write/103":                        gins,
		},
	})
}

// The middleware may be on the target too.
func TestHandleContextMeetsTheMiddlewareTwice(t *testing.T) {
	t.Parallel()
	mw, runs := protect(t), 0
	to := router(mw, func(c *gin.Context) { runs++; c.String(201, "paid") })
	r := router(mw, func(c *gin.Context) { to.HandleContext(c) })
	for range 2 {
		if w := send(r, "/pay", "k1"); w.Code != 201 || w.Body.String() != "paid" || runs != 1 {
			t.Errorf("answer = %d %q after %d runs, want 201 after one", w.Code, w.Body, runs)
		}
	}
}

// What middleware outside logs is the response that the client got.
func TestHandleContextLeavesGinsWriterAsItWas(t *testing.T) {
	t.Parallel()
	r := forwarding(func(c *gin.Context) { c.String(201, "paid") }, func(c *gin.Context) {
		before := c.Writer
		c.Next()
		if c.Writer != before || c.Writer.Status() != 201 || c.Writer.Size() != len("paid") || !c.Writer.Written() {
			t.Errorf("outside sees %d, %d bytes", c.Writer.Status(), c.Writer.Size())
		}
	}, protect(t))
	for range 2 {
		if w := send(r, "/pay", "k1"); w.Code != 201 || w.Body.String() != "paid" {
			t.Errorf("answer = %d %q", w.Code, w.Body)
		}
	}
}

func post(t *testing.T, srv *httptest.Server, key string) (status int, body string, err error) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), "POST", srv.URL+"/pay", strings.NewReader(`{"amount":1}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	req.Header.Set("Idempotency-Key", key)
	resp, err := srv.Client().Do(req)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	all, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(bytes.TrimSpace(all)), err
}
