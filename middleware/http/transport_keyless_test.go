package idemhttp_test

import (
	"context"
	"errors"
	"net/http"
	"net/http/httptest"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// A handler sends on what came without a key. There is no key to derive, so each call gets one of its own, and what the handler has left
// running sends nothing.
func TestTransportForARequestWithoutAKey(t *testing.T) {
	t.Parallel()
	f := &flaky{}
	transport := idemhttp.MustNewTransport(f, honoured)
	call := func(ctx context.Context) error {
		resp, err := transport.RoundTrip(post(t, ctx, "{}"))
		if err == nil {
			resp.Body.Close()
		}
		return err
	}
	var left context.Context
	h := idemhttp.MustNew(exchangetest.Conflicting(t, 0), idem.Policy{AllowGlobalKeys: true, CallsOtherSystems: true}, exchange.Config{OptionalKey: true})(
		http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			left = context.WithoutCancel(r.Context())
			if _, err := idem.JoinedTxOf(r.Context()); err != nil {
				t.Error(err)
			}
			for range 2 {
				if err := call(r.Context()); err != nil {
					t.Error(err)
				}
			}
			w.WriteHeader(http.StatusCreated)
		}))
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest(http.MethodPost, "/pay", http.NoBody))
	if k := f.keys; w.Code != http.StatusCreated || len(k) != 2 || k[0] == "" || k[1] == "" || k[0] == k[1] {
		t.Errorf("answer = %d, and the calls had the keys %q, want 201 and two keys", w.Code, k)
	}
	if err := call(left); !errors.Is(err, idem.ErrExecutionEnded) || len(f.keys) != 2 {
		t.Errorf("after the handler: %v and the keys %q, want %v", err, f.keys, idem.ErrExecutionEnded)
	}
}
