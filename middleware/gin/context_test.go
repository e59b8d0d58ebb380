package idemgin_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// eachFallback runs a test with Gin's two settings: c.Value finds string keys
// only, or what the request's context has as well.
func eachFallback(t *testing.T, run func(t *testing.T, r *gin.Engine)) {
	for name, fallback := range map[string]bool{"without ContextWithFallback": false, "with ContextWithFallback": true} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := gin.New()
			r.ContextWithFallback = fallback
			run(t, r)
		})
	}
}

func notApplied(context.Context, idem.Interrupted) (idem.Resolution, error) {
	return idem.NotApplied(), nil
}

// The next attempt has to send the key of the first one, whatever context the
// handler made its request with.
func TestTransportDerivesTheKeyFromGinsContext(t *testing.T) {
	eachFallback(t, func(t *testing.T, r *gin.Engine) {
		var mu sync.Mutex
		var keys []string
		bank := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			mu.Lock()
			defer mu.Unlock()
			keys = append(keys, r.Header.Get("Idempotency-Key"))
		}))
		t.Cleanup(bank.Close)
		base := &http.Transport{}
		t.Cleanup(base.CloseIdleConnections)
		client := &http.Client{Transport: idemhttp.MustNewTransport(base, idemhttp.WithKeysHonoured())}
		r.POST("/pay", idemgin.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.AskResolver(notApplied)}), func(c *gin.Context) {
			for _, ctx := range []context.Context{c, c.Request.Context(), c.Copy()} {
				req, err := http.NewRequestWithContext(ctx, http.MethodPost, bank.URL+"/charges", http.NoBody)
				if err != nil {
					t.Error(err)
					return
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				resp.Body.Close()
			}
			c.Status(500) // in doubt, and the resolver lets it run again
		})
		send(r, "/pay", "k1")
		send(r, "/pay", "k1")
		mu.Lock()
		defer mu.Unlock()
		if len(keys) != 6 || slices.Contains(keys, "") || len(slices.Compact(slices.Clone(keys))) != 1 {
			t.Errorf("keys sent to the bank: %q, want one, six times", keys)
		}
	})
}

func TestGinsContextBelongsToTheExecution(t *testing.T) {
	eachFallback(t, func(t *testing.T, r *gin.Engine) {
		r.POST("/pay", protect(t), func(c *gin.Context) {
			want, ok := idem.FromContext(c.Request.Context())
			if got, found := idem.FromContext(c); !ok || !found || got != want {
				t.Errorf("FromContext(c) = %+v, %v, want %+v", got, found, want)
			}
			wantKey, err := idem.DownstreamKey(c.Request.Context(), "bank")
			if err != nil {
				t.Errorf("DownstreamKey(c.Request.Context()) = %v", err)
			}
			if key, err := idem.DownstreamKey(c, "bank"); key != wantKey || err != nil {
				t.Errorf("DownstreamKey(c) = %q, %v, want %q", key, err, wantKey)
			}
			if left, err := idem.CheckOwner(c); left <= 0 || err != nil {
				t.Errorf("CheckOwner(c) = %v, %v", left, err)
			}
			c.Status(429) // after the gate: in doubt
		})
		send(r, "/pay", "k1")
		wantDoubt(t, send(r, "/pay", "k1")) // the gate was passed
	})
}

// Outside of the middleware c belongs to no execution, and one that is over
// allows nothing any more.
func TestGinsContextOutsideOfTheExecution(t *testing.T) {
	eachFallback(t, func(t *testing.T, r *gin.Engine) {
		check := func(c *gin.Context, want error) {
			t.Helper()
			if key, err := idem.DownstreamKey(c, "bank"); key != "" || !errors.Is(err, want) {
				t.Errorf("DownstreamKey() = %q, %v, want %v", key, err, want)
			}
			if _, err := idem.CheckOwner(c); !errors.Is(err, want) {
				t.Errorf("CheckOwner() = %v, want %v", err, want)
			}
		}
		var kept *gin.Context
		r.POST("/pay", func(c *gin.Context) {
			check(c, idem.ErrNoExecution)
			c.Next()
			check(c, idem.ErrExecutionEnded)
			check(kept, idem.ErrExecutionEnded)
		}, protect(t), func(c *gin.Context) { kept = c.Copy() })
		r.GET("/pay", protect(t), func(c *gin.Context) { check(c, idem.ErrNoExecution) })
		r.POST("/plain", func(c *gin.Context) {
			check(c, idem.ErrNoExecution)
			c.Set("github.com/idemkeeper/idemkeeper/idem", "not one")
			check(c, idem.ErrNoExecution)
		})
		send(r, "/pay", "k1")
		r.ServeHTTP(httptest.NewRecorder(), httptest.NewRequest(http.MethodGet, "/pay", http.NoBody))
		send(r, "/plain", "k1") // with the context that Gin has recycled
	})
}

// A request that a handler makes within the process is a part of its execution, in Gin's context as
// well. So is what a handler does after an execution of another key within its own.
func TestGinsContextOfAnExecutionWithin(t *testing.T) {
	eachFallback(t, func(t *testing.T, r *gin.Engine) {
		engine := newEngine(t)
		mw := idemgin.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
		var outer idem.Execution
		runs := 0
		check := func(c *gin.Context, same bool) {
			t.Helper()
			if x, ok := idem.FromContext(c); !ok || (x == outer) != same {
				t.Errorf("FromContext() = %+v, %v, want that of the outer execution: %v", x, ok, same)
			}
			runs++
		}
		r.POST("/part", mw, func(c *gin.Context) { check(c, true) })
		r.POST("/pay", mw, func(c *gin.Context) {
			outer, _ = idem.FromContext(c)
			part := httptest.NewRequest(http.MethodPost, "/part", http.NoBody).WithContext(c.Request.Context())
			part.Header.Set("Idempotency-Key", "k1")
			r.ServeHTTP(httptest.NewRecorder(), part)
			c.Next()
			check(c, true)
		}, idemgin.MustNew(engine, idem.Policy{Scope: merchant, Name: "inner", InDoubt: idem.LeaveUnknown()}, exchange.Config{Header: "Inner-Key"}), func(c *gin.Context) { check(c, false) })
		send(r, "/pay", "k1", "Inner-Key", "k2")
		if runs != 3 {
			t.Errorf("%d handlers ran, want 3", runs)
		}
	})
}
