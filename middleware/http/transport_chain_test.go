package idemhttp_test

import (
	"context"
	"crypto/x509"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

var hostnameError = x509.HostnameError{Certificate: &x509.Certificate{}, Host: "pay.example"}

// service protects a handler with an engine of its own.
func service(t *testing.T, policy idem.Policy, h http.HandlerFunc) string {
	t.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		t.Fatal(err)
	}
	policy.AllowGlobalKeys = true
	srv := httptest.NewServer(idemhttp.MustNew(engine, policy)(h))
	t.Cleanup(func() {
		srv.Close()
		if err := engine.Close(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return srv.URL
}

// A name tells apart two requests of one execution to one path.
func TestCallNames(t *testing.T) {
	t.Parallel()
	var derived []string
	f := &flaky{}
	named := idemhttp.MustNewTransport(f, honoured, idemhttp.WithCallName(func(r *http.Request) string { return r.Header.Get("X-Call") }))
	keyedPost(t, service(t, idem.Policy{InDoubt: idem.LeaveUnknown()}, func(_ http.ResponseWriter, r *http.Request) {
		for _, name := range []string{"fee", "amount", "fee", ""} {
			req := post(t, r.Context(), "{}")
			req.Header.Set("X-Call", name)
			resp, err := named.RoundTrip(req)
			if err != nil {
				t.Error(err)
				return
			}
			resp.Body.Close()
		}
		for _, name := range []string{"fee", "amount", "fee", "POST pay.example/v1/payments"} {
			key, err := idem.DownstreamKey(r.Context(), name)
			if err != nil {
				t.Error(err)
			}
			derived = append(derived, key)
		}
	}))
	if k := f.keys; !slices.Equal(k, derived) || k[0] == k[1] || k[0] == k[3] || k[1] == k[3] {
		t.Errorf("keys %q, want those of the names, %q", k, derived)
	}
}

// A request without a key that a handler sends on may have an effect, unless its
// method has none: then the handler may still say that nothing was done.
func TestRequestsWithoutAKeyAreEffects(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		method string
		runs   int64
	}{{http.MethodPut, 1}, {http.MethodDelete, 1}, {http.MethodGet, 2}} {
		t.Run(tt.method, func(t *testing.T) {
			t.Parallel()
			back := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(429) }))
			t.Cleanup(back.Close)
			base := &http.Transport{}
			t.Cleanup(base.CloseIdleConnections)
			client := &http.Client{Transport: idemhttp.MustNewTransport(base, honoured)}
			var runs atomic.Int64
			front := service(t, idem.Policy{InDoubt: idem.LeaveUnknown()}, func(w http.ResponseWriter, r *http.Request) {
				runs.Add(1)
				req, err := http.NewRequestWithContext(r.Context(), tt.method, back.URL, http.NoBody)
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
				w.WriteHeader(resp.StatusCode)
			})
			for range 2 {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, front, http.NoBody)
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Idempotency-Key", "k1")
				resp, err := (&http.Client{Transport: base}).Do(req)
				if err != nil {
					t.Fatal(err)
				}
				resp.Body.Close()
			}
			if n := runs.Load(); n != tt.runs {
				t.Errorf("%d runs, want %d", n, tt.runs)
			}
		})
	}
}
