package idemgin_test

import (
	"context"
	"errors"
	"fmt"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// A handler that runs again finds nothing in its context that its first run has left there.
func TestRunAgainStartsFromTheSameContext(t *testing.T) {
	t.Parallel()
	var seen []string
	r := gin.New()
	r.Use(func(c *gin.Context) {
		c.Set("merchant", "m1")
		_ = c.Error(errors.New("outside"))
		c.Next()
		if v, _ := c.Get("payment"); v != "p2" || len(c.Errors) != 1 {
			t.Errorf("outside sees payment %v and errors %v, want those of the last run", v, c.Errors)
		}
	})
	r.POST("/pay/:id", serveTwice(t), func(c *gin.Context) {
		if _, err := idem.JoinedTxOf(c.Request.Context()); err != nil {
			t.Errorf("JoinedTxOf() = %v", err)
		}
		merchant, _ := c.Get("merchant")
		left, _ := c.Get("left")
		seen = append(seen, fmt.Sprintln(merchant, left, len(c.Errors), c.Param("id"), c.PostForm("amount"), c.Query("note"),
			c.Request.URL, c.Writer.Status(), c.Writer.Header().Get("X-Left"), c.Accepted, c.FullPath(), c.ClientIP()))
		c.Set("merchant", "m2")
		c.Set("left", "1")
		c.Set("payment", fmt.Sprintf("p%d", len(seen)))
		c.Params[0].Value = "changed"
		c.Request.PostForm.Set("amount", "1")
		c.Request.URL.RawQuery = "note=changed"
		c.Header("X-Left", "1")
		c.SetAccepted("text/plain")
		if len(seen) == 1 {
			_ = c.AbortWithError(500, driver.ErrConflict)
			return
		}
		_, _ = c.Writer.WriteString("paid")
	})
	req := httptest.NewRequest("POST", "/pay/7?note=a", strings.NewReader("amount=1250"))
	req.Header.Set("Idempotency-Key", "k1")
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	r.ServeHTTP(w, req)
	want := "m1 <nil> 1 7 1250 a /pay/7?note=a 200  [] /pay/:id 192.0.2.1\n"
	if len(seen) != 2 || seen[0] != want || seen[1] != want {
		t.Errorf("the runs see\n%s, want each time\n%s", strings.Join(seen, "\n"), want)
	}
	if w.Code != 200 || w.Body.String() != "paid" {
		t.Errorf("answer = %d %q, want that of the second run", w.Code, w.Body)
	}
}

// A handler may have the context from elsewhere, as resolvers of GraphQL have it from the context of the
// request. Its second run answers there, too.
func TestRunAgainInTheContextFromElsewhere(t *testing.T) {
	t.Parallel()
	type key struct{}
	for name, tt := range map[string]struct {
		end    func(c *gin.Context)
		status int
		body   string
	}{
		"an answer":                    {func(c *gin.Context) { c.String(402, "no funds") }, 402, "no funds"},
		"an error without an answer":   {func(c *gin.Context) { _ = c.Error(errors.New("half of a template")); c.Abort() }, 500, ""},
		"the transaction of the run":   {func(c *gin.Context) { _, err := idem.JoinedTxOf(c.Request.Context()); c.String(201, "%v", err) }, 201, "<nil>"},
		"the transaction by c.Value()": {func(c *gin.Context) { _, err := idem.JoinedTxOf(c); c.String(201, "%v", err) }, 201, "<nil>"},
	} {
		runs := 0
		r := gin.New()
		r.Use(func(c *gin.Context) {
			c.Request = c.Request.WithContext(context.WithValue(c.Request.Context(), key{}, c))
		})
		r.POST("/pay", serveTwice(t), func(own *gin.Context) {
			if _, err := idem.JoinedTxOf(own.Request.Context()); err != nil {
				t.Errorf("%s: JoinedTxOf() = %v", name, err)
			}
			c, _ := own.Request.Context().Value(key{}).(*gin.Context)
			if runs++; runs == 1 {
				_ = c.AbortWithError(500, driver.ErrConflict)
				return
			}
			tt.end(c)
		})
		if w := send(r, "/pay", "k1"); w.Code != tt.status || tt.body != "" && w.Body.String() != tt.body || runs != 2 {
			t.Errorf("%s: answer = %d %q after %d runs, want %d %q after 2", name, w.Code, w.Body, runs, tt.status, tt.body)
		}
	}
}

// Gin cannot run a chain twice. So nothing runs again but a handler right behind the middleware, and
// no part of the chain is left out.
func TestWhatCannotRunAgain(t *testing.T) {
	t.Parallel()
	elsewhere := func(c *gin.Context) {}
	for name, tt := range map[string]struct {
		between []gin.HandlerFunc
		handler func(r *gin.Engine, c *gin.Context)
	}{
		"with middleware in between": {[]gin.HandlerFunc{elsewhere}, func(_ *gin.Engine, c *gin.Context) {}},
		"with a second of its kind":  {[]gin.HandlerFunc{idemgin.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, exchange.Config{Methods: []string{"PUT"}})}, func(_ *gin.Engine, c *gin.Context) {}},
		"with HandleContext":         {nil, func(r *gin.Engine, c *gin.Context) { c.Request.URL.Path = "/elsewhere"; r.HandleContext(c) }},
	} {
		runs := 0
		r := gin.New()
		r.POST("/elsewhere", elsewhere)
		r.POST("/pay", append(append([]gin.HandlerFunc{serveTwice(t)}, tt.between...), func(c *gin.Context) {
			if _, err := idem.JoinedTxOf(c.Request.Context()); err != nil {
				t.Errorf("JoinedTxOf() = %v", err)
			}
			runs++
			tt.handler(r, c)
		})...)
		for i, want := range []int{503, 200, 200} { // the client retries, and then repeats
			if w := send(r, "/pay", "k1"); w.Code != want {
				t.Errorf("%s: answer %d = %d %q, want %d", name, i, w.Code, w.Body, want)
			}
		}
		if runs != 2 {
			t.Errorf("%s: the handler ran %d times, want one for each of two requests", name, runs)
		}
	}
}

// An error that a handler reports beside its response counts the same in each run.
func TestRunAgainReadsErrorsAsTheFirstRunDoes(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		end    func(c *gin.Context)
		status int
	}{
		"an error after the response":              {func(c *gin.Context) { _ = c.Error(errors.New("audit")) }, 201},
		"a chain that is aborted with its error":   {func(c *gin.Context) { _ = c.Error(errors.New("half of a template")); c.Abort() }, 500},
		"a chain that is aborted without an error": {func(c *gin.Context) { c.Abort() }, 201},
	} {
		for conflicts := range 2 {
			runs := 0
			r := router(idemgin.MustNew(exchangetest.Conflicting(t, conflicts), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}), func(c *gin.Context) {
				if _, err := idem.JoinedTxOf(c.Request.Context()); err != nil {
					t.Errorf("JoinedTxOf() = %v", err)
				}
				if runs++; runs <= conflicts {
					_ = c.AbortWithError(500, driver.ErrConflict)
					return
				}
				c.String(201, "paid")
				tt.end(c)
			})
			if w := send(r, "/pay", "k1"); w.Code != tt.status {
				t.Errorf("%s, after %d conflicts: answer = %d %q, want %d", name, conflicts, w.Code, w.Body, tt.status)
			}
		}
	}
}

// serveTwice returns middleware whose first run of the handler is rolled back.
func serveTwice(t *testing.T) gin.HandlerFunc {
	return idemgin.MustNew(exchangetest.Conflicting(t, 1), idem.Policy{Scope: func(context.Context) (string, error) { return "m1", nil }})
}
