package exchangetest

import (
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// withoutKey sends the usual request without a key.
func (b *bundle) withoutKey() answer {
	b.Helper()
	return b.send(b.request("POST", "/pay", "", payBody))
}

// joinOptional gives the bundle an engine in joined mode and a route whose key is optional.
func (b *bundle) joinOptional() *ledger {
	b.Helper()
	b.cfg.OptionalKey = true
	return b.joinLedger()
}

// keylessCases are about requests without a key in joined mode, on a route where it is optional. The handler has
// one way for both.
var keylessCases = []testCase{
	{"each request commits what its handler writes", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); string(body) != payBody || err != nil {
				b.Errorf("the handler reads %q, %v, want the body of the client", body, err)
			}
			if _, ok := idem.FromContext(r.Context()); ok != (r.Header["Idempotency-Key"] != nil) {
				b.Errorf("in an execution: %v, key %q", ok, r.Header["Idempotency-Key"])
			}
			if _, err := idem.DownstreamKey(r.Context(), "bank"); !errors.Is(err, idem.ErrUndeclared) {
				b.Errorf("DownstreamKey() = %v, want %v with a key and without", err, idem.ErrUndeclared)
			}
			created(w, r)
		}))
		for range 2 {
			b.want(b.withoutKey(), 201, `{"id":"p1"}`, false)
		}
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		b.wantRefusal(b.send(keyed("")(b)), idem.CodeKeyInvalid)
		b.wantRuns(3)
		if n, records := ledger.payments(), b.records.Len(); n != 3 || records != 1 {
			b.Errorf("%d payments and %d records, want 3 and one", n, records)
		}
		if n := b.events(telemetry.EventUnprotected); n != 2 {
			b.Errorf("%d events %v, want 2", n, telemetry.EventUnprotected)
		}
		if all := b.engine.WithoutKey(); len(all) != 1 || all[0].Count != 2 || all[0].Route == "" {
			b.Errorf("WithoutKey() = %+v, want 2 of one route", all)
		}
	}},
	{"an answer that is no success rolls back, and is the handler's", func(b *bundle) {
		ledger := b.joinOptional()
		status := 0
		b.protect(b.pays(func(w http.ResponseWriter, r *http.Request) {
			if _, err := idem.CheckOwner(r.Context()); err != nil {
				b.Errorf("CheckOwner() = %v", err)
			}
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "no")
		}))
		for _, status = range []int{400, 402, 408, 409, 422, 429, 500, 503} {
			a := b.withoutKey()
			if b.want(a, status, "no", false); a.Header.Get("Retry-After") != "7" {
				b.Errorf("%d: header = %v, want that of the handler", status, a.Header)
			}
		}
		if n := ledger.payments(); n != 0 {
			b.Errorf("%d payments, want none", n)
		}
	}},
	{"a refusal that the handler relays is its answer", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/problem+json")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, `{"code":"in-progress"}`)
		}))
		b.want(b.withoutKey(), 409, `{"code":"in-progress"}`, false)
		if n := ledger.payments(); n != 0 {
			b.Errorf("%d payments, want none", n)
		}
	}},
	{"a panic rolls back", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(func(w http.ResponseWriter, _ *http.Request) {
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "half")
			panic("boom")
		}), recovering)
		b.want(b.withoutKey(), 500, "", false)
		if n := ledger.payments(); n != 0 {
			b.Errorf("%d payments, want none", n)
		}
	}},
	{"a COMMIT that fails is not told as a success", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "1")
			created(w, r)
			_ = http.NewResponseController(w).Flush()
			_, _ = io.WriteString(w, strings.Repeat(" ", 2<<20)) // longer than what is stored
		}))
		for _, tt := range []struct {
			commit error
			code   idem.Code
		}{
			{driver.ErrRolledBack, idem.CodeUnavailable}, {driver.ErrSwallowed, idem.CodeUnavailable},
			{driver.ErrEscaped, idem.CodeOutcomeUnknown}, {driver.ErrUnavailable, idem.CodeOutcomeUnknown},
		} {
			ledger.refuseWith(tt.commit)
			a := b.withoutKey()
			if a.StatusCode != tt.code.HTTPStatus() || !strings.Contains(a.body, string(tt.code)) || a.Header["X-Handler"] != nil || strings.Contains(a.body, "same key") {
				b.Errorf("COMMIT failed with %v: answer = %d %s, %v, want %s", tt.commit, a.StatusCode, a.body, a.Header, tt.code)
			}
			if unknown := tt.code == idem.CodeOutcomeUnknown; strings.Contains(a.body, `"may_have_happened":true`) != unknown || strings.Contains(a.body, "operation_id") || (a.Header.Get("Retry-After") == "") != unknown {
				b.Errorf("%v: answer = %s, %v", tt.commit, a.body, a.Header)
			}
		}
	}},
	{"a success without the transaction is the handler's, and the developer is told", func(b *bundle) {
		b.joinOptional()
		b.protect(created)
		b.want(b.withoutKey(), 201, `{"id":"p1"}`, false)
		if n := b.events(telemetry.EventMisused); n != 1 {
			b.Errorf("%d events %v, want 1", n, telemetry.EventMisused)
		}
	}},
	{"middleware that answers for a handler that runs is not believed", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(func(w http.ResponseWriter, r *http.Request) {
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				w.WriteHeader(429)
				_, _ = io.WriteString(w, "slow down")
			}()
			<-answered
			created(w, r)
		}))
		b.wantRefusedWithoutKey(b.withoutKey(), idem.CodeUnavailable)
		if n := ledger.payments(); n != 0 {
			b.Errorf("%d payments, want none", n)
		}
	}},
	{"a conflict runs the handler again, with the request of the client", func(b *bundle) {
		b.cfg.OptionalKey = true
		b.engine = Conflicting(b, 1)
		b.protect(b.pays(func(w http.ResponseWriter, r *http.Request) {
			if body, err := io.ReadAll(r.Body); string(body) != payBody || err != nil {
				b.Errorf("run %d reads %q, %v, want the body of the client", b.runs.Load(), body, err)
			}
			created(w, r)
		}))
		a := b.withoutKey()
		if b.runs.Load() == 1 { // an adapter that cannot run it again asks the client to come again
			if a.StatusCode != 503 {
				b.Errorf("answer = %d %s, want 503", a.StatusCode, a.body)
			}
			return
		}
		b.want(a, 201, `{"id":"p1"}`, false)
		b.wantRuns(2)
	}},
	{"a body that is too long is refused before a transaction begins", func(b *bundle) {
		b.policy.MaxRequestBody = 10
		b.joinOptional()
		b.protect(b.pays(created))
		b.wantRefusal(b.withoutKey(), idem.CodeBodyTooLarge)
		b.wantRuns(0)
	}},
	{"a body that middleware in front has read is left to the handler", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(func(w http.ResponseWriter, r *http.Request) {
			if r.PostForm.Get("amount") != "1250" {
				b.Errorf("the handler has the form %v, want that of the middleware in front", r.PostForm)
			}
			created(w, r)
		}), func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_ = r.ParseForm()
				next.ServeHTTP(w, r)
			})
		})
		r := b.request("POST", "/pay", "", "amount=1250")
		r.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		b.want(b.send(r), 201, `{"id":"p1"}`, false)
		if n := ledger.payments(); n != 1 {
			b.Errorf("%d payments, want 1", n)
		}
	}},
	{"the middleware met twice is one transaction", func(b *bundle) {
		ledger := b.joinOptional()
		b.protect(b.pays(created))
		twice, err := b.adapter.Protect(b.engine, b.policy, b.cfg, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			inner := b.handler(b.adapter.Protect(b.engine, b.policy, b.cfg, b.pays(created)))
			inner.ServeHTTP(w, r)
		}))
		b.url, b.client = b.listen(b.handler(twice, err))
		b.want(b.withoutKey(), 201, `{"id":"p1"}`, false)
		if n := ledger.payments(); n != 1 {
			b.Errorf("%d payments, want 1", n)
		}
		if n := b.events(telemetry.EventUnprotected); n != 1 {
			b.Errorf("%d events %v, want 1", n, telemetry.EventUnprotected)
		}
	}},
}

// wantRefusedWithoutKey is wantRefusal for a client that has sent no key.
func (b *bundle) wantRefusedWithoutKey(a answer, code idem.Code) {
	b.Helper()
	if a.StatusCode != code.HTTPStatus() || !strings.Contains(a.body, `"`+string(code)+`"`) || strings.Contains(a.body, "same key") {
		b.Errorf("answer = %d %s, want %s for a client without a key", a.StatusCode, a.body, code)
	}
}
