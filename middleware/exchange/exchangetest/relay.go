package exchangetest

import (
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// relayCases are about handlers that answer with another service's refusal.
var relayCases = []testCase{
	{"a relayed refusal is in doubt, whatever its status, and the client reads our code", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { problem(w, 422, r.Header.Get("Idempotency-Key")) })
		for _, code := range []idem.Code{idem.CodeKeyMissing, idem.CodeKeyInvalid, idem.CodeBodyInvalid, idem.CodeTokenUnknown, idem.CodeInProgress,
			idem.CodeKeyReused, idem.CodeOutcomeUnknown, idem.CodeKeyExpired, idem.CodeResultUnavailable, idem.CodeOwnershipLost,
			idem.CodeUnavailable, idem.CodeStoreLost, idem.CodeBodyTooLarge, idem.CodeBodyIncomplete, idem.CodeInternal} {
			key := string(code)
			for range 2 {
				b.wantDoubt(b.pay(key), key, "")
			}
			b.wantState(key, driver.StateUnknown)
		}
	}},
	{"a problem with a code of its own is an outcome", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { problem(w, 402, "insufficient-funds") })
		b.want(b.pay("k1"), 402, problemBody("insufficient-funds"), false)
		b.want(b.pay("k1"), 402, problemBody("insufficient-funds"), true)
		b.wantState("k1", driver.StateCompleted)
	}},
	{"a body that only looks like a refusal is an outcome", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.WriteHeader(409)
			_, _ = io.WriteString(w, problemBody("in-progress"))
		})
		b.pay("k1")
		b.wantState("k1", driver.StateCompleted)
	}},
	{"a relayed refusal is asked about, and its resolver's answer counts", func(b *bundle) {
		b.policy.InDoubt = idem.AskResolver(applied)
		b.protect(func(w http.ResponseWriter, r *http.Request) { problem(w, 403, "token-unknown") })
		for range 2 {
			b.want(b.pay("k1"), 201, "resolved", true)
		}
		b.wantRuns(1)
	}},
	{"a relayed refusal that is streamed or compressed is one", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("Idempotency-Key") {
			case "flushed":
				w.Header().Set("Content-Type", "application/problem+json; charset=utf-8")
				w.WriteHeader(409)
				_, _ = io.WriteString(w, problemBody("in-progress")[:10])
				w.(http.Flusher).Flush()
				_, _ = io.WriteString(w, problemBody("in-progress")[10:])
			case "compressed":
				w.Header().Set("Content-Encoding", "gzip")
				w.Header().Set("Content-Type", "application/problem+json")
				w.WriteHeader(409)
				z := gzip.NewWriter(w)
				_, _ = io.WriteString(z, problemBody("in-progress"))
				_ = z.Close()
			case "brotli": // asked for by a client of the proxy
				w.Header().Set("Content-Encoding", "br")
				problem(w, 422, "\x00\x01\x02")
			}
		})
		for _, key := range []string{"flushed", "compressed", "brotli"} {
			for range 2 {
				b.wantDoubt(b.pay(key), key, "")
			}
			b.wantState(key, driver.StateUnknown)
		}
	}},
	{"a proxy in front of a service that refuses is in doubt", func(b *bundle) {
		policy := b.policy
		policy.IssuedTokens = true
		h, err := b.adapter.Protect(b.engine, policy, exchange.Config{}, http.NotFoundHandler())
		if err != nil {
			b.Fatal(err)
		}
		back := httptest.NewServer(h)
		b.Cleanup(back.Close)
		target, _ := url.Parse(back.URL)
		proxy := httputil.NewSingleHostReverseProxy(target)
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			r.Header.Set("Idempotency-Key", "not-issued")
			proxy.ServeHTTP(w, r)
		})
		b.wantDoubt(b.pay("k1"), "k1", "") // 403 would be released
		b.wantState("k1", driver.StateUnknown)
	}},
	{"a handler that calls its own service is a duplicate", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			req := b.request("POST", "/pay", "k1", payBody).WithContext(r.Context())
			resp, err := b.client.Do(req)
			if err != nil {
				b.Error(err)
				return
			}
			defer resp.Body.Close()
			if body, _ := io.ReadAll(resp.Body); resp.StatusCode != 409 || !strings.Contains(string(body), "in-progress") {
				b.Errorf("the call over the network = %d %q, want in-progress", resp.StatusCode, body)
			}
			created(w, r)
		})
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.wantRuns(1)
	}},
}

func applied(context.Context, idem.Interrupted) (idem.Resolution, error) {
	return idem.Applied(idem.Response{Status: 201, Body: []byte("resolved")}), nil
}

func problemBody(code string) string { return fmt.Sprintf(`{"title":"No","code":%q}`, code) }

// problem answers with a status and a code.
func problem(w http.ResponseWriter, status int, code string) {
	w.Header().Set("Content-Type", "application/problem+json")
	w.WriteHeader(status)
	_, _ = io.WriteString(w, problemBody(code))
}
