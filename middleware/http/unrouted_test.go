package idemhttp_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// What a mux answers by itself is no outcome. A deployment may add the route, and a client may follow
// a redirect with the same key.
func TestRequestsWithoutARoute(t *testing.T) {
	protect := idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	runs := 0
	pay := func(w http.ResponseWriter, _ *http.Request) { runs++; w.WriteHeader(http.StatusCreated) }
	before, after := http.NewServeMux(), http.NewServeMux()
	before.HandleFunc("GET /payments", pay)
	before.HandleFunc("POST /refunds/", pay)
	after.HandleFunc("POST /payments", pay)
	after.HandleFunc("POST /captures", pay)
	after.HandleFunc("POST /refunds/", pay)
	send := func(h http.Handler, path, key string) int {
		r := httptest.NewRequest(http.MethodPost, path, strings.NewReader("{}"))
		r.Header.Set("Idempotency-Key", key)
		w := httptest.NewRecorder()
		h.ServeHTTP(w, r)
		return w.Code
	}
	old, current := protect(before), protect(after)
	for key, tt := range map[string]struct {
		path, next string
		status     int
	}{
		"no-route":      {"/captures", "/captures", 404},
		"another-verb":  {"/payments", "/payments", 405},
		"another-place": {"/refunds", "/refunds/", 307},
	} {
		for range 2 {
			if status := send(old, tt.path, key); status != tt.status {
				t.Errorf("%s: answer = %d, want the mux's %d", key, status, tt.status)
			}
		}
		for range 2 {
			if status := send(current, tt.next, key); status != 201 {
				t.Errorf("%s: answer after the deployment = %d, want 201", key, status)
			}
		}
	}
	if runs != 3 {
		t.Errorf("the handler ran %d times, want once for each key", runs)
	}
}
