package exchangetest

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// statusCases are about the status handler.
var statusCases = []testCase{
	{"each state, and who settles what is open", func(b *bundle) {
		key := map[string]string{"none": "nobody's", "pending": "held", "completed": "paid", "released": "nothing", "unknown": "broken", "expired": "old"}
		inside, goOn := make(chan struct{}), make(chan struct{})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			switch r.Header.Get("Idempotency-Key") {
			case key["pending"]:
				close(inside)
				<-goOn
			case key["released"]:
				idem.NoEffect(r.Context())
			case key["unknown"]:
				w.WriteHeader(http.StatusInternalServerError)
				return
			}
			created(w, r)
		})
		b.want(b.pay(key["expired"]), 201, `{"id":"p1"}`, false)
		b.later.Store(int64(25 * time.Hour))
		held := make(chan answer, 1)
		go func() {
			a, _ := b.trySend(b.request("POST", "/pay", key["pending"], payBody))
			held <- a
		}()
		receive(b, "a start", inside)
		for _, state := range []string{"completed", "released", "unknown"} {
			b.pay(key[state])
		}
		token, err := b.engine.IssueToken(b.Context(), "merchant", time.Hour)
		if err != nil {
			b.Fatal(err)
		}
		key["issued"] = string(token.Value)

		for _, resolver := range []struct {
			policy func(*idem.Policy)
			says   bool
		}{
			{func(*idem.Policy) {}, false},
			{func(p *idem.Policy) { p.InDoubt = idem.AskResolver(neverAsked) }, true},
			{func(p *idem.Policy) { p.InDoubt = idem.RunAgain() }, true},
		} {
			policy := b.policy
			resolver.policy(&policy)
			ask := b.statusOf(policy)
			if a, _ := ask("GET", key["none"]); a.body != "{\"state\":\"none\"}\n" {
				b.Errorf("status of no key = %q", a.body)
			}
			for _, tt := range []struct {
				state   string
				attempt any // nil if not told
				kind    string
				expires bool
				open    bool
			}{
				{"issued", nil, "issued-token", true, false},
				{"pending", 1.0, "client-key", false, true},
				{"completed", 1.0, "client-key", true, false},
				{"released", 1.0, "client-key", true, false},
				{"unknown", 1.0, "client-key", false, true},
				{"expired", 1.0, "client-key", true, false},
			} {
				a, s := ask("GET", key[tt.state])
				says, told := s["resolver"].(bool)
				if s["state"] != tt.state || s["attempt"] != tt.attempt || s["kind"] != tt.kind || (s["expires_at"] != nil) != tt.expires ||
					told != tt.open || says != (resolver.says && tt.open) {
					b.Errorf("status of %s = %s, want %+v, and resolver %v where it is open", tt.state, a.body, tt, resolver.says)
				}
				since, err := time.Parse(time.RFC3339, text(s["since"]))
				if err != nil || time.Since(since) > time.Hour || !strings.HasPrefix(text(s["operation_id"]), "op_") {
					b.Errorf("status of %s = %s, want since when, and an operation", tt.state, a.body)
				}
			}
		}
		close(goOn)
		receive(b, "an answer", held)
		b.wantRuns(5) // being asked about runs nothing
	}},
	{"the policy of the key's route decides who settles", func(b *bundle) {
		b.policy.Name = "pay"
		b.protect(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		b.pay("k1")
		with := func(name string) idem.Policy {
			return idem.Policy{Name: name, Scope: b.policy.Scope, InDoubt: idem.AskResolver(neverAsked)}
		}
		without := func(name string) idem.Policy {
			return idem.Policy{Name: name, Scope: b.policy.Scope, InDoubt: idem.LeaveUnknown()}
		}
		for name, tt := range map[string]struct {
			policy idem.Policy
			routes []idem.Policy
			want   bool
		}{
			"of every route":         {with(""), nil, true},
			"of the route":           {with("pay"), nil, true},
			"of another route":       {with("refund"), nil, false},
			"the route has one":      {without(""), []idem.Policy{with("pay")}, true},
			"the route has none":     {with(""), []idem.Policy{without("pay")}, false},
			"another route has none": {with(""), []idem.Policy{without("refund")}, true},
			"before a named one":     {without("pay"), []idem.Policy{with("pay")}, true},
		} {
			b.cfg.StatusPolicies = tt.routes
			if a, s := b.statusOf(tt.policy)("GET", "k1"); s["state"] != "unknown" || s["resolver"] != tt.want {
				b.Errorf("%s: status = %s, want it unknown, and resolver %v", name, a.body, tt.want)
			}
		}
	}},
	{"a key is its scope's", func(b *bundle) {
		b.policy.Scope = nil
		b.cfg.Scope = func(r *http.Request) (string, error) { return r.Header.Get("X-Merchant"), nil }
		b.protect(created)
		b.want(b.send(withHeader(b.request("POST", "/pay", "k1", payBody), "X-Merchant", "m1")), 201, `{"id":"p1"}`, false)
		ask := b.statusOf(b.policy)
		if _, s := ask("GET", "k1", "X-Merchant", "m1"); s["state"] != "completed" {
			b.Errorf("status for its owner = %v", s)
		}
		if a, _ := ask("GET", "k1", "X-Merchant", "m2"); a.body != "{\"state\":\"none\"}\n" {
			b.Errorf("status for somebody else = %q", a.body)
		}
	}},
	{"what it refuses", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		ask := b.statusOf(b.policy)
		a, s := ask("HEAD", `"k1"`)
		if a.StatusCode != 200 || a.body != "" || s != nil || a.Header.Get("Cache-Control") != "no-store" || a.Header.Get("Content-Type") != "application/json" {
			b.Errorf("HEAD = %d %q, %v", a.StatusCode, a.body, a.Header)
		}
		if _, s := ask("GET", `"k1"`); s["state"] != "completed" { // the quoted form is the same key
			b.Errorf("status = %v, want completed", s)
		}
		a, _ = ask("GET", "")
		b.wantRefusal(a, idem.CodeKeyMissing)
		a, _ = ask("GET", "k 1")
		b.wantRefusal(a, idem.CodeKeyInvalid)
		if a, _ = ask("POST", "k1"); a.StatusCode != 405 || a.Header.Get("Allow") == "" {
			b.Errorf("POST = %d, Allow %q", a.StatusCode, a.Header.Get("Allow"))
		}
		b.failStore(errDown)
		a, _ = ask("GET", "k1")
		b.wantRefusal(a, idem.CodeUnavailable)
		b.failStore(driver.ErrStoreLost)
		a, _ = ask("GET", "k1")
		b.wantRefusal(a, idem.CodeStoreLost)
	}},
}

// neverAsked is the resolver of a status handler. The handler does not ask it.
func neverAsked(context.Context, idem.Interrupted) (idem.Resolution, error) {
	panic("the status handler asked a resolver")
}

func text(v any) string {
	s, _ := v.(string)
	return s
}

// statusOf serves a status handler and returns a function to ask it. header has names and
// values.
func (b *bundle) statusOf(policy idem.Policy) func(method, key string, header ...string) (answer, map[string]any) {
	b.Helper()
	url, client := b.listen(b.handler(b.adapter.Status(b.engine, policy, b.cfg)))
	return func(method, key string, header ...string) (answer, map[string]any) {
		b.Helper()
		req, err := http.NewRequest(method, url+"/v1/idempotency", nil)
		if err != nil {
			b.Fatal(err)
		}
		if key != "" {
			req.Header.Set("Idempotency-Key", key)
		}
		for i := 0; i < len(header); i += 2 {
			withHeader(req, header[i], header[i+1])
		}
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		defer resp.Body.Close()
		body, err := io.ReadAll(resp.Body)
		var s map[string]any
		_ = json.Unmarshal(body, &s)
		return answer{resp, string(body), err}, s
	}
}
