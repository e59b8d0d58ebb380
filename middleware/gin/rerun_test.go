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
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// A handler that runs again finds nothing in its context that its first run has left there.
func TestRerunStartsFromTheSameContext(t *testing.T) {
	t.Parallel()
	for name, between := range map[string]bool{"right in front of the handler": false, "with middleware between": true} {
		var seen []string
		r := gin.New()
		r.Use(func(c *gin.Context) {
			c.Set("merchant", "m1")
			_ = c.Error(errors.New("outside"))
			c.Next()
			if v, _ := c.Get("payment"); v != "p2" || len(c.Errors) != 1 {
				t.Errorf("%s: outside sees payment %v and errors %v, want those of the last run", name, v, c.Errors)
			}
		})
		chain := []gin.HandlerFunc{serveTwice(t)}
		if between {
			chain = append(chain, func(c *gin.Context) { c.Set("bound", "by middleware") })
		}
		r.POST("/pay/:id", append(chain, func(c *gin.Context) {
			if _, err := idem.JoinedTxOf(c.Request.Context()); err != nil {
				t.Errorf("JoinedTxOf() = %v", err)
			}
			merchant, _ := c.Get("merchant")
			bound, _ := c.Get("bound")
			left, _ := c.Get("left")
			seen = append(seen, fmt.Sprintln(merchant, bound, left, len(c.Errors), c.Param("id"), c.PostForm("amount"), c.Query("note"),
				c.Request.URL, c.Writer.Status(), c.Writer.Header().Get("X-Left"), c.Accepted, c.FullPath(), c.ClientIP()))
			c.Set("merchant", "m2")
			if !between {
				c.Set("left", "1")
			}
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
		})...)
		req := httptest.NewRequest("POST", "/pay/7?note=a", strings.NewReader("amount=1250"))
		req.Header.Set("Idempotency-Key", "k1")
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		w := httptest.NewRecorder()
		r.ServeHTTP(w, req)
		want := "m1 <nil> <nil> 1 7 1250 a /pay/7?note=a 200  [] /pay/:id 192.0.2.1\n"
		if between {
			want = strings.Replace(want, "<nil>", "by middleware", 1)
		}
		if len(seen) != 2 || seen[0] != want || !between && seen[1] != want {
			t.Errorf("%s: the runs see\n%s, want each time\n%s", name, strings.Join(seen, "\n"), want)
		}
		if between && (len(seen) != 2 || !strings.HasSuffix(seen[1], strings.TrimPrefix(want, "m1 "))) {
			t.Errorf("%s: the second run sees %s, want the values of the middleware between", name, seen)
		}
		if w.Code != 200 || w.Body.String() != "paid" {
			t.Errorf("%s: answer = %d %q, want that of the second run", name, w.Code, w.Body)
		}
	}
}

// An error that a handler reports beside its response counts the same in each run.
func TestRerunReadsErrorsAsTheFirstRunDoes(t *testing.T) {
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
			var opts []idemgin.Option
			if conflicts > 0 {
				opts = append(opts, idemgin.WithRerun())
			}
			runs := 0
			r := router(idemgin.Middleware(exchangetest.Conflicting(t, conflicts), idem.Policy{Scope: merchant}, opts...), func(c *gin.Context) {
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
	return idemgin.Middleware(exchangetest.Conflicting(t, 1), idem.Policy{Scope: func(context.Context) (string, error) { return "m1", nil }}, idemgin.WithRerun())
}
