package idemhttp_test

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// hedge sends a payment up to three times, 50 ms apart, and returns the first answer.
func hedge(t *testing.T, url string) (status int, body string) {
	t.Helper()
	type answer struct {
		status int
		body   string
		err    error
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	const attempts = 3
	answers := make(chan answer, attempts)
	send := func() {
		req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(`{"amount":1250}`))
		if err != nil {
			answers <- answer{err: err}
			return
		}
		req.Header.Set("Content-Type", "application/json")
		req.Header.Set("Idempotency-Key", "k1")
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			answers <- answer{err: err}
			return
		}
		body, err := io.ReadAll(resp.Body)
		_ = resp.Body.Close()
		answers <- answer{resp.StatusCode, string(body), err}
	}
	next := time.NewTicker(50 * time.Millisecond)
	defer next.Stop()
	for range attempts - 1 {
		go send()
		select {
		case a := <-answers:
			return a.status, a.body
		case <-next.C:
		}
	}
	go send()
	a := <-answers
	if a.err != nil {
		t.Fatal(a.err)
	}
	return a.status, a.body
}

// The first answer to a hedged request is the refusal of a duplicate, unless duplicates wait. The
// handler runs once either way, to its end.
func TestHedgedRequestRunsOnce(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		wait   time.Duration
		status int
		body   string
	}{
		"a duplicate is refused": {0, http.StatusConflict, `"code":"in-progress"`},
		"duplicates wait":        {time.Minute, http.StatusCreated, "paid"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			duplicates := make(chan struct{}, 3)
			engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
				if ev.Type == telemetry.EventJoined {
					duplicates <- struct{}{}
				}
			}))
			release := make(chan struct{})
			var runs atomic.Int64
			var left atomic.Value
			protect := idemhttp.MustNew(engine, idem.Policy{Name: "pay", Scope: merchant, DuplicateWait: tt.wait})
			server := httptest.NewServer(protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				<-release
				left.Store(r.Context().Err() != nil)
				w.WriteHeader(http.StatusCreated)
				_, _ = w.Write([]byte("paid"))
			})))
			defer server.Close()
			if tt.wait > 0 {
				go func() {
					defer close(release)
					<-duplicates
					<-duplicates
				}()
			}
			status, body := hedge(t, server.URL)
			if tt.wait == 0 {
				close(release)
			}
			if status != tt.status || !strings.Contains(body, tt.body) {
				t.Errorf("the caller got %d %s, want %d with %s", status, body, tt.status, tt.body)
			}
			server.Close() // waits for the handler
			if n := runs.Load(); n != 1 || left.Load() != false {
				t.Errorf("the handler ran %d times, and saw its client leave: %v, want one run to its end", n, left.Load())
			}
		})
	}
}
