package idemhttp_test

import (
	"context"
	"net/http"
	"net/http/httptest"
	"reflect"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func newEngine(t testing.TB, opts ...idem.Option) *idem.Engine {
	t.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

func merchant(context.Context) (string, error) { return "m1", nil }

func TestRouteNamesThePolicy(t *testing.T) {
	var mu sync.Mutex
	routes := map[string]bool{}
	engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		mu.Lock()
		defer mu.Unlock()
		routes[ev.Route] = true
	}))
	protect := idemhttp.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	handler := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {}))
	mux := http.NewServeMux()
	mux.Handle("POST /payments/{id}", handler)
	for _, h := range []http.Handler{mux, handler} {
		r := httptest.NewRequest("POST", "/payments/1", nil)
		r.Header.Set("Idempotency-Key", "k1")
		h.ServeHTTP(httptest.NewRecorder(), r)
	}
	if want := map[string]bool{"POST /payments/{id}": true, "POST": true}; !reflect.DeepEqual(routes, want) {
		t.Errorf("routes = %v, want %v", routes, want)
	}
}

// The server removes the files of a form that it knows of.
func TestMultipartFormReachesTheServer(t *testing.T) {
	protect := idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	h := protect(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if err := r.ParseMultipartForm(1); err != nil {
			t.Error(err)
		}
	}))
	body := "--b\r\nContent-Disposition: form-data; name=\"f\"; filename=\"f\"\r\n\r\ncontent\r\n--b--\r\n"
	r := httptest.NewRequest("POST", "/", strings.NewReader(body))
	r.Header.Set("Content-Type", "multipart/form-data; boundary=b")
	r.Header.Set("Idempotency-Key", "k1")
	h.ServeHTTP(httptest.NewRecorder(), r)
	if r.MultipartForm == nil {
		t.Fatal("the server's request has no form")
	}
	if err := r.MultipartForm.RemoveAll(); err != nil {
		t.Error(err)
	}
}

// What the suite finds to be wrong wiring makes the other forms panic.
func TestWrongWiringPanics(t *testing.T) {
	two := []exchange.Config{{}, {}}
	for name, fn := range map[string]func(){
		"no engine": func() { idemhttp.MustNew(nil, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}) },
		"no scope":  func() { idemhttp.MustStatusHandler(newEngine(t), idem.Policy{}) },
		"no time": func() {
			idemhttp.MustTokenHandler(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, -1)
		},
		"two configs": func() {
			idemhttp.MustNew(newEngine(t), idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()}, two...)
		},
	} {
		func() {
			defer func() {
				if err, ok := recover().(error); !ok || !strings.HasPrefix(err.Error(), "idemhttp: ") {
					t.Errorf("%s: panic with %v", name, err)
				}
			}()
			fn()
		}()
	}
}

// An operation may be read from the request, but not from its body, which nothing would give back to
// the handler.
func TestOperationThatReadsTheBodyIsRefused(t *testing.T) {
	t.Parallel()
	ran := false
	h := idemhttp.MustNew(newEngine(t), idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, exchange.Config{
		Operation: func(r *http.Request) string { return r.FormValue("operation") },
	})(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { ran = true }))
	r := httptest.NewRequest("POST", "/pay", strings.NewReader("operation=pay&amount=1"))
	r.Header.Set("Idempotency-Key", "k1")
	r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	w := httptest.NewRecorder()
	if h.ServeHTTP(w, r); w.Code != http.StatusInternalServerError || ran {
		t.Errorf("answer = %d %s, the handler ran: %t, want 500 and no run", w.Code, w.Body, ran)
	}
}
