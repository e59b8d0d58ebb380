package idemgin_test

import (
	"errors"
	"fmt"
	"html/template"
	"net/http"
	"strings"
	"syscall"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// What a handler has begun to answer and could not finish is no outcome, and
// repeats do not get half of it.
func TestHalfAResponseIsInDoubt(t *testing.T) {
	renders := gin.CustomRecovery(func(c *gin.Context, _ any) { c.AbortWithStatusJSON(500, gin.H{"error": "sorry"}) })
	page := template.Must(template.New("page").Funcs(template.FuncMap{"fail": func() (string, error) { return "", errors.New("no data") }}).
		Parse(strings.Repeat("x", 5000) + `{{fail}}`))
	for name, tt := range map[string]struct {
		chain []gin.HandlerFunc
		body  string
	}{
		"a panic recovered inside": {[]gin.HandlerFunc{gin.Recovery(), func(c *gin.Context) {
			_, _ = c.Writer.WriteString(`{"id":`)
			panic("boom")
		}}, ""},
		"a panic recovered inside and rendered": {[]gin.HandlerFunc{renders, func(c *gin.Context) {
			c.String(201, "half")
			panic("boom")
		}}, `{"error":"sorry"}`},
		"a panic over a broken connection, recovered inside": {[]gin.HandlerFunc{gin.Recovery(), func(c *gin.Context) {
			c.String(201, "half")
			panic(fmt.Errorf("to the bank: %w", syscall.EPIPE))
		}}, ""},
		"a page that cannot be rendered": {[]gin.HandlerFunc{func(c *gin.Context) { c.HTML(200, "page", nil) }}, ""},
		"a hijack that fails": {[]gin.HandlerFunc{func(c *gin.Context) {
			if _, _, err := c.Writer.Hijack(); !errors.Is(err, http.ErrNotSupported) {
				t.Errorf("Hijack() = %v, want %v", err, http.ErrNotSupported)
			}
			c.JSON(500, gin.H{"error": "no upgrade"})
		}}, `{"error":"no upgrade"}`},
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			r := gin.New()
			r.SetHTMLTemplate(page)
			r.POST("/p", append([]gin.HandlerFunc{idemgin.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})}, tt.chain...)...)
			live, again := send(r, "/p", "k1"), send(r, "/p", "k1")
			if live.Code != 500 || live.Body.String() != tt.body {
				t.Errorf("live = %d %q, want 500 %q", live.Code, live.Body, tt.body)
			}
			wantDoubt(t, again)
			if tt.body != "" && (live.Header().Get("Content-Type") != "application/json; charset=utf-8" && name != "a panic recovered inside and rendered") {
				t.Errorf("Content-Type = %q", live.Header().Get("Content-Type"))
			}
			if got, err := engine.Status(t.Context(), "m1", "k1"); err != nil || got.State != driver.StateUnknown {
				t.Errorf("state = %v, %v, want unknown", got.State, err)
			}
		})
	}
}

// An error that is only reported, after the answer was written, changes nothing.
func TestErrorsReportedAfterTheAnswerAreForLogs(t *testing.T) {
	for name, handler := range map[string]gin.HandlerFunc{
		"success":          func(c *gin.Context) { c.JSON(201, gin.H{}); _ = c.Error(errors.New("metrics are down")) },
		"aborted, refused": func(c *gin.Context) { c.AbortWithStatusJSON(402, gin.H{}); _ = c.Error(errors.New("poor")) },
	} {
		t.Run(name, func(t *testing.T) {
			engine := newEngine(t)
			r := router(idemgin.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}), handler)
			if live, again := send(r, "/p", "k1"), send(r, "/p", "k1"); live.Code >= 500 || again.Code != live.Code {
				t.Errorf("live %d, replay %d", live.Code, again.Code)
			}
			if got, err := engine.Status(t.Context(), "m1", "k1"); err != nil || got.State != driver.StateCompleted {
				t.Errorf("state = %v, %v, want completed", got.State, err)
			}
		})
	}
}

// The middleware on a router and again on a route is one execution.
func TestMiddlewareMetTwice(t *testing.T) {
	eachFallback(t, func(t *testing.T, r *gin.Engine) {
		runs := 0
		mw := protect(t)
		r.Use(mw)
		r.POST("/pay", mw, func(c *gin.Context) {
			runs++
			if x, ok := idem.FromContext(c); !ok || x.Attempt != 1 {
				t.Errorf("FromContext(c) = %+v, %v", x, ok)
			}
			c.String(201, "paid")
		})
		for i := range 2 {
			w := send(r, "/pay", "k1")
			if replayed := w.Header().Get("Idempotent-Replayed") == "true"; w.Code != 201 || w.Body.String() != "paid" || replayed != (i == 1) {
				t.Errorf("request %d = %d %q, replayed %v", i, w.Code, w.Body, replayed)
			}
		}
		if runs != 1 {
			t.Errorf("the handler ran %d times, want once", runs)
		}
	})
}
