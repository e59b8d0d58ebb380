package exchangetest

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// configCases are about the config of a route.
var configCases = []testCase{
	{"safe methods need no key and reach the handler as they are", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := idem.FromContext(r.Context()); ok {
				b.Errorf("%s runs in an execution", r.Method)
			}
			_, _ = io.WriteString(w, "live")
		})
		for _, method := range []string{"GET", "HEAD", "OPTIONS", "TRACE"} {
			for _, key := range []string{"", "k1"} {
				if a := b.send(b.request(method, "/pay", key, "")); a.StatusCode != 200 || a.replayed() {
					b.Errorf("%s with key %q = %d %s, want the handler's 200", method, key, a.StatusCode, a.body)
				}
			}
		}
		b.wantRuns(8)
		if n := b.records.Len(); n != 0 {
			b.Errorf("%d records, want none", n)
		}
	}},
	{"every other method needs a key", func(b *bundle) {
		b.protect(created)
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			b.wantRefusal(b.send(b.request(method, "/pay", "", payBody)), idem.CodeKeyMissing)
		}
		b.wantNothing()
	}},
	{"a route chooses its methods", func(b *bundle) {
		b.cfg.Methods = []string{"POST", "GET"}
		b.protect(created)
		b.wantRefusal(b.send(b.request("POST", "/pay", "", payBody)), idem.CodeKeyMissing)
		b.wantRefusal(b.send(b.request("GET", "/pay", "", "")), idem.CodeKeyMissing)
		b.wantNothing()
		b.want(b.send(b.request("PUT", "/pay", "", payBody)), 201, `{"id":"p1"}`, false)
		b.want(b.send(b.request("GET", "/pay", "k1", "")), 201, `{"id":"p1"}`, false)
		b.want(b.send(b.request("GET", "/pay", "k1", "")), 201, `{"id":"p1"}`, true)
		b.wantRuns(2)
	}},
	{"an optional key", func(b *bundle) {
		b.cfg.OptionalKey = true
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if _, ok := idem.FromContext(r.Context()); ok != (r.Header["Idempotency-Key"] != nil) {
				b.Errorf("in an execution: %v, key %q", ok, r.Header["Idempotency-Key"])
			}
			created(w, r)
		})
		for range 2 {
			b.want(b.send(b.request("POST", "/pay", "", payBody)), 201, `{"id":"p1"}`, false)
		}
		b.wantRuns(2)
		if got := b.events(telemetry.EventUnprotected); got != 2 {
			b.Errorf("%d events %v, want 2", got, telemetry.EventUnprotected)
		}
		b.want(b.send(b.request("GET", "/pay", "", "")), 201, `{"id":"p1"}`, false) // needs none anyway
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		b.wantRefusal(b.send(keyed("")(b)), idem.CodeKeyInvalid)
		b.wantRefusal(b.send(keyed("k1", "k2")(b)), idem.CodeKeyInvalid)
		b.wantRuns(4)
		if got := b.events(telemetry.EventUnprotected); got != 2 {
			b.Errorf("%d events %v, want 2", got, telemetry.EventUnprotected)
		}
	}},
	{"a key of another format", func(b *bundle) {
		b.policy.KeyFormat = idem.KeyFormat{
			Valid:  func(k idem.Key) bool { return len(k) == 4 },
			Advice: "Send four characters.",
		}
		b.protect(created)
		a := b.pay("k1")
		if b.wantRefusal(a, idem.CodeKeyInvalid); !strings.Contains(a.body, `"Send four characters."`) {
			b.Errorf("refusal = %s, want the format's advice", a.body)
		}
		b.wantNothing()
		b.want(b.pay(`"k123"`), 201, `{"id":"p1"}`, false)
		b.want(b.pay("k123"), 201, `{"id":"p1"}`, true)
	}},
	{"the config's scope takes the place of the policy's", func(b *bundle) {
		b.policy.Scope = func(context.Context) (string, error) { return "", io.ErrUnexpectedEOF }
		b.cfg.Scope = func(r *http.Request) (string, error) {
			if s := r.Header.Get("X-Merchant"); s != "secret" {
				return s, nil
			}
			return "m3", io.ErrUnexpectedEOF
		}
		b.protect(created)
		b.wantRefusal(b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "X-Merchant", "secret")), idem.CodeInternal)
		for _, merchant := range []string{"m1", "m2"} {
			b.want(b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "X-Merchant", merchant)), 201, `{"id":"p1"}`, false)
		}
		b.wantRuns(2)
	}},
	{"neither the host nor other headers are compared", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		other := withHeader(b.request("POST", "/pay", "k1", payBody), "X-Currency", "EUR")
		other.Host = "other.example.com"
		b.want(b.send(other), 201, `{"id":"p1"}`, true)
	}},
	{"headers that a route compares", func(b *bundle) {
		b.cfg.Compare = []string{"host", "x-currency"}
		b.protect(created)
		request := func(host string, currency ...string) answer {
			r := withHeader(b.request("POST", "/pay", "k1", payBody), "X-Currency", currency...)
			r.Host = host
			return b.send(r)
		}
		b.want(request("a.example.com", "USD"), 201, `{"id":"p1"}`, false)
		b.want(request("A.example.com", "USD"), 201, `{"id":"p1"}`, true)
		b.wantRefusal(request("b.example.com", "USD"), idem.CodeKeyReused)
		b.wantRefusal(request("a.example.com", "EUR"), idem.CodeKeyReused)
		b.wantRefusal(request("a.example.com", "USD", "EUR"), idem.CodeKeyReused)
		b.wantRefusal(request("a.example.com"), idem.CodeKeyReused)
		b.wantRuns(1)
	}},
	{"a header that a route begins to compare does not change requests without it", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.cfg.Compare = []string{"X-Currency"}
		b.protectAgain()
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		a := b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "X-Currency", ""))
		if b.wantRefusal(a, idem.CodeKeyReused); !strings.Contains(a.body, "do not take a new key") {
			b.Errorf("refusal = %s, want a warning for a retry of the same operation", a.body)
		}
		b.wantRuns(1)
	}},
	{"refusals point to their documentation", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		for _, page := range []string{"https://example.com/keys", "/keys"} {
			b.cfg.Documentation = page
			b.protect(created)
			for code, a := range map[idem.Code]answer{
				idem.CodeKeyMissing: b.send(b.request("POST", "/pay", "", payBody)),
				idem.CodeKeyReused:  b.send(b.request("POST", "/pay", "k1", `{}`)),
			} {
				b.wantRefusal(a, code)
				var p struct{ Type string }
				want := page + "#" + string(code)
				if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Type != want {
					b.Errorf("%s: type = %q, %v, want %q", code, p.Type, err, want)
				}
				if got := a.Header.Get("Link"); got != "<"+want+`>; rel="describedby"; type="text/html"` {
					b.Errorf("%s: Link = %q", code, got)
				}
			}
		}
	}},
	{"refusals in a format of the application", func(b *bundle) {
		b.cfg.Refuse = func(w http.ResponseWriter, r *http.Request, refusal *idem.Refusal) {
			w.Header().Set("Content-Type", "text/plain")
			if refusal.Code == idem.CodeKeyMissing {
				w.WriteHeader(428)
			}
			_, _ = io.WriteString(w, r.URL.Path+" "+string(refusal.Code)+": "+refusal.Detail())
		}
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			x, _ := idem.FromContext(r.Context())
			b.lock.Revoke(x.KeyID)
			b.operator(r.Context(), nil)
			w.Header().Set("X-Handler", "1")
			_, _ = io.WriteString(w, "secret")
		})
		lost := b.pay("k1")
		b.want(lost, 503, "/pay ownership-lost: "+idem.CodeOwnershipLost.Detail(), false)
		if h := lost.Header; h.Get("Retry-After") != "1" || h.Get("Cache-Control") != "no-store" ||
			h.Get("Content-Type") != "text/plain" || h["X-Handler"] != nil {
			b.Errorf("header = %v", h)
		}
		b.want(b.send(b.request("POST", "/pay", "", payBody)), 428, "/pay key-missing: "+idem.CodeKeyMissing.Detail(), false)
		status, client := b.listen(b.handler(b.adapter.Status(b.engine, b.policy, b.cfg)))
		resp, err := client.Get(status + "/status")
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		if body, err := io.ReadAll(resp.Body); resp.StatusCode != 428 || !strings.HasPrefix(string(body), "/status key-missing") {
			b.Errorf("status handler answered %d %s, %v", resp.StatusCode, body, err)
		}
	}},
	{"a format that flushes first is not taken for success", func(b *bundle) {
		b.cfg.Refuse = func(w http.ResponseWriter, _ *http.Request, _ *idem.Refusal) {
			if err := http.NewResponseController(w).Flush(); !errors.Is(err, http.ErrNotSupported) {
				b.Errorf("Flush() = %v, want %v", err, http.ErrNotSupported)
			}
			_, _ = io.WriteString(w, "sorry")
		}
		b.protect(created)
		b.want(b.send(b.request("POST", "/pay", "", payBody)), 400, "sorry", false)
	}},
	{"a format that writes nothing is not taken for success", func(b *bundle) {
		b.cfg.Refuse = func(http.ResponseWriter, *http.Request, *idem.Refusal) {}
		b.protect(created)
		b.wantRefusal(b.send(b.request("POST", "/pay", "", payBody)), idem.CodeKeyMissing)
	}},
}
