package exchangetest

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// failureCases are about handlers that fail.
var failureCases = []testCase{
	{"bug 21: a panic is no success, and is not run again", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "1")
			_, _ = io.WriteString(w, "half")
			panic("boom")
		})
		if a, err := b.trySend(b.request("POST", "/pay", "k1", payBody)); err == nil {
			b.Errorf("answer = %d %q, want a broken connection", a.StatusCode, a.body)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"bug 21: a recovered panic shows nothing that the handler wrote", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "1")
			w.WriteHeader(201)
			_, _ = io.WriteString(w, "half")
			panic("boom")
		}, recovering)
		a := b.pay("k1")
		b.want(a, 500, "", false)
		if a.Header["X-Handler"] != nil {
			b.Errorf("header = %v", a.Header)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"an aborted handler is in doubt", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { panic(http.ErrAbortHandler) })
		if _, err := b.trySend(b.request("POST", "/pay", "k1", payBody)); err == nil {
			b.Error("the connection was not broken off")
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"NoEffect releases the key whatever the answer", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if b.runs.Load() == 1 {
				idem.NoEffect(r.Context())
				w.WriteHeader(503)
				return
			}
			created(w, r)
		})
		b.want(b.pay("k1"), 503, "", false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
	}},
	{"NoEffect before a downstream key is asked for gives no key back", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			idem.NoEffect(r.Context())
			if _, err := idem.DownstreamKey(r.Context(), "bank"); err != nil {
				b.Errorf("DownstreamKey() = %v", err)
			}
			w.WriteHeader(429)
		})
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantRuns(1)
	}},
	{"a refusal from another goroutine, as of a time-out, gives no key back", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			idem.NoEffect(r.Context()) // so far
			answered := make(chan struct{})
			go func() {
				defer close(answered)
				w.WriteHeader(429)
				_, _ = io.WriteString(w, "slow down") // a framework may only note the status until then
			}()
			<-answered
			created(w, r)
		})
		for range 2 {
			b.wantRefusal(b.pay("k1"), idem.CodeOutcomeUnknown)
		}
		b.wantRuns(1)
		if n := b.events(telemetry.EventMisused); n != 1 {
			b.Errorf("%d events misused, want one", n)
		}
	}},
	{"bug 23: failing open is for those who ask for it", func(b *bundle) {
		b.policy.FailOpen = true
		b.protect(created)
		b.failStore(errDown)
		for range 2 {
			b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		}
		b.wantRuns(2)
	}},
	{"what a handler has left running cannot send anything", func(b *bundle) {
		b.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.NotApplied(), nil })
		goOn, gate := make(chan struct{}), make(chan error, 6)
		slow := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			<-goOn
			_, err := idem.CheckOwner(r.Context())
			gate <- err
			_, err = idem.DownstreamKey(r.Context(), "bank")
			gate <- err
		})
		b.protect(http.TimeoutHandler(slow, time.Millisecond, "late").ServeHTTP)
		for range 3 {
			b.want(b.pay("k1"), 503, "late", false)
		}
		b.wantRuns(3) // beside each other
		close(goOn)
		for range 6 {
			if err := receive(b, "the end of a handler", gate); !errors.Is(err, idem.ErrExecutionEnded) {
				b.Errorf("the gate said %v, want %v", err, idem.ErrExecutionEnded)
			}
		}
	}},
	{"a closed engine refuses", func(b *bundle) {
		b.protect(created)
		if err := b.engine.Close(b.Context()); err != nil {
			b.Fatal(err)
		}
		b.wantRefusal(b.pay("k1"), idem.CodeUnavailable)
		b.wantNothing()
	}},
}

// wiringCases are about names in the config, and about mistakes.
var wiringCases = []testCase{
	{"another header", func(b *bundle) {
		b.cfg.Header = "x-request-key"
		b.protect(created)
		b.wantRefusal(b.pay("k1"), idem.CodeKeyMissing)
		b.want(b.send(withHeader(b.request("POST", "/pay", "", payBody), "X-Request-Key", "k1")), 201, `{"id":"p1"}`, false)
	}},
	{"more headers to replay", func(b *bundle) {
		b.cfg.Replay = []string{"x-request-id"}
		b.protect(created)
		b.pay("k1")
		again := b.pay("k1")
		if got := again.Header.Get("X-Request-Id"); got != "r1" || again.Header.Get("Location") == "" {
			b.Errorf("replayed X-Request-Id = %q", got)
		}
	}},
	{"mistakes are told at start", func(b *bundle) {
		for name, c := range map[string]struct {
			engine *idem.Engine
			policy idem.Policy
			cfg    exchange.Config
		}{
			"no engine":                 {nil, b.policy, exchange.Config{}},
			"no scope":                  {b.engine, idem.Policy{}, exchange.Config{}},
			"a cookie":                  {b.engine, b.policy, exchange.Config{Replay: []string{"set-cookie"}}},
			"credentials":               {b.engine, b.policy, exchange.Config{Replay: []string{"X-Fine", "WWW-Authenticate"}}},
			"an answer to an origin":    {b.engine, b.policy, exchange.Config{Replay: []string{"Access-Control-Allow-Origin"}}},
			"what the answer varies by": {b.engine, b.policy, exchange.Config{Replay: []string{"vary"}}},
			"the date":                  {b.engine, b.policy, exchange.Config{Replay: []string{"date"}}},
			"a hop-by-hop header":       {b.engine, b.policy, exchange.Config{Replay: []string{"Transfer-Encoding"}}},
			"the length":                {b.engine, b.policy, exchange.Config{Replay: []string{"Content-Length"}}},
			"a trailer":                 {b.engine, b.policy, exchange.Config{Replay: []string{"Trailer:X"}}},
			"no header name":            {b.engine, b.policy, exchange.Config{Replay: []string{""}}},
			"a header with a space":     {b.engine, b.policy, exchange.Config{Header: "Idempotency Key"}},
			"a header to compare":       {b.engine, b.policy, exchange.Config{Compare: []string{"X Currency"}}},
			"no methods":                {b.engine, b.policy, exchange.Config{Methods: []string{}}},
			"no method's name":          {b.engine, b.policy, exchange.Config{Methods: []string{"PO ST"}}},
			"a method in small letters": {b.engine, b.policy, exchange.Config{Methods: []string{"POST", "patch"}}},
			"an optional token":         {b.engine, idem.Policy{AllowGlobalKeys: true, IssuedTokens: true, InDoubt: idem.LeaveUnknown()}, exchange.Config{OptionalKey: true}},
			"a URI with a fragment":     {b.engine, b.policy, exchange.Config{Documentation: "https://example.com/#keys"}},
			"a URI for a header":        {b.engine, b.policy, exchange.Config{Documentation: "https://example.com/>; rel=\"x"}},
			"a URI without a scheme":    {b.engine, b.policy, exchange.Config{Documentation: "://example.com"}},
			"a relative URI":            {b.engine, b.policy, exchange.Config{Documentation: "keys.html"}},
			"a format half set":         {b.engine, idem.Policy{AllowGlobalKeys: true, KeyFormat: idem.KeyFormat{Advice: "x"}, InDoubt: idem.LeaveUnknown()}, exchange.Config{}},
			"two policies for a route":  {b.engine, b.policy, exchange.Config{StatusPolicies: []idem.Policy{{Name: "pay", InDoubt: idem.LeaveUnknown()}, {Name: "pay", InDoubt: idem.LeaveUnknown()}}}},
			"a policy without a route":  {b.engine, b.policy, exchange.Config{StatusPolicies: []idem.Policy{{}}}},
			"a negative limit":          {b.engine, idem.Policy{AllowGlobalKeys: true, MaxRequestBody: -1, InDoubt: idem.LeaveUnknown()}, exchange.Config{}},
		} {
			if h, err := b.adapter.Protect(c.engine, c.policy, c.cfg, http.NotFoundHandler()); err == nil || h != nil {
				b.Errorf("%s: no error", name)
			} else if s := err.Error(); !strings.HasPrefix(s, "idem") || strings.Contains(s, "\n") {
				b.Errorf("%s: error %q", name, s)
			}
			if h, err := b.adapter.Status(c.engine, c.policy, c.cfg); err == nil || h != nil {
				b.Errorf("%s: no error of the status handler", name)
			}
		}
		if b.adapter.Tokens != nil {
			if h, err := b.adapter.Tokens(b.engine, b.policy, -1); err == nil || h != nil {
				b.Errorf("tokens with a negative time to live: no error")
			}
		}
	}},
}
