package exchangetest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// nestedCases are about requests that meet the middleware within an execution.
var nestedCases = []testCase{
	{"middleware that is met twice executes once", func(b *bundle) {
		policy := b.policy
		policy.DuplicateWait = time.Hour // it must not wait for itself
		b.policy = policy
		b.protect(b.again(policy, func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); string(body) != payBody || err != nil {
				b.Errorf("body = %q, %v", body, err)
			}
			if x, ok := idem.FromContext(r.Context()); !ok || x.Attempt != 1 {
				b.Errorf("FromContext() = %+v, %v", x, ok)
			}
			created(w, r)
		}))
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		b.wantRuns(1)
	}},
	{"a request that the handler makes within the process is a part of it", func(b *bundle) {
		inner := 0
		sub := b.again(b.policy, func(w http.ResponseWriter, r *http.Request) { inner++; w.WriteHeader(204) })
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			for range 2 {
				req := b.request("POST", "/other", "k1", "{}").WithContext(r.Context())
				req.RequestURI = "/other"
				rec := httptest.NewRecorder()
				sub(rec, req)
				if rec.Code != 204 {
					b.Errorf("sub-request = %d %q", rec.Code, rec.Body)
				}
			}
			created(w, r)
		})
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		if inner != 2 {
			b.Errorf("the inner handler ran %d times, want 2", inner)
		}
	}},
	{"another policy for the same key is a wiring error, and the client reads that the outcome is unknown", func(b *bundle) {
		for name, change := range map[string]func(*idem.Policy){
			"name":     func(p *idem.Policy) { p.Name = "other" },
			"kind":     func(p *idem.Policy) { p.IssuedTokens = true },
			"resolver": func(p *idem.Policy) { p.InDoubt = idem.AskResolver(applied) },
			"deadline": func(p *idem.Policy) { p.HandlerTimeout = time.Hour },
		} {
			b.policy.Name = "first"
			other := b.policy
			change(&other)
			b.protect(b.again(other, func(http.ResponseWriter, *http.Request) { b.Errorf("%s: the handler ran", name) }))
			b.wantDoubt(b.pay(name), name, "")
			b.wantState(name, driver.StateUnknown)
		}
	}},
	{"another key is an execution of its own", func(b *bundle) {
		sub := b.again(b.policy, func(w http.ResponseWriter, r *http.Request) {
			x, _ := idem.FromContext(r.Context())
			w.Header().Set("Location", x.OperationID)
		})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			x, _ := idem.FromContext(r.Context())
			for i := range 2 {
				rec := httptest.NewRecorder()
				sub(rec, b.request("POST", "/pay", "k2", payBody).WithContext(r.Context()))
				replayed := rec.Header().Get("Idempotent-Replayed") == "true"
				if rec.Code != 200 || replayed != (i == 1) || rec.Header().Get("Location") == x.OperationID {
					b.Errorf("sub-request %d = %d %v", i, rec.Code, rec.Header())
				}
				rec = httptest.NewRecorder() // k1 from within k2 from within k1
				b.again(b.policy, func(w http.ResponseWriter, r *http.Request) { w.WriteHeader(204) })(rec, b.request("POST", "/pay", "k1", payBody).WithContext(r.Context()))
				if rec.Code != 204 {
					b.Errorf("sub-request with the outer key = %d", rec.Code)
				}
			}
			created(w, r)
		})
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
	}},
	{"a request made after the execution has ended is a duplicate", func(b *bundle) {
		var left *http.Request
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			left = b.request("POST", "/pay", "k1", payBody).WithContext(r.Context())
			left.RequestURI = "/pay"
			created(w, r)
		})
		b.pay("k1")
		rec := httptest.NewRecorder()
		b.again(b.policy, func(http.ResponseWriter, *http.Request) { b.Error("ran again") })(rec, left)
		if rec.Code != 503 && rec.Code != 201 { // its context has ended, or the record told first
			b.Errorf("answer = %d %q", rec.Code, rec.Body)
		}
	}},
}

// again is a handler behind the adapter once more, with the bundle's engine.
func (b *bundle) again(policy idem.Policy, h http.HandlerFunc) http.HandlerFunc {
	b.Helper()
	handler, err := b.adapter.Protect(b.engine, policy, b.cfg, h)
	if err != nil {
		b.Fatalf("Protect() = %v", err)
	}
	return handler.ServeHTTP
}
