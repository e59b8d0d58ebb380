package exchangetest

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
)

// doubtCases are about what a client is told while the outcome is in doubt.
var doubtCases = []testCase{
	{"an answer that says that nothing is decided reaches the first caller, with all headers", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			var status int
			_, _ = fmt.Sscan(r.Header.Get("Idempotency-Key"), &status)
			w.Header().Set("Set-Cookie", "session=1")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			_, _ = io.WriteString(w, "not now")
		})
		for _, key := range []string{"408", "499", "500", "502", "503", "504", "599"} {
			a := b.pay(key)
			if b.want(a, a.StatusCode, "not now", false); fmt.Sprint(a.StatusCode) != key || a.Header.Get("Set-Cookie") == "" || a.Header.Get("Retry-After") != "7" {
				b.Errorf("answer = %d, %v, want %s with the handler's headers", a.StatusCode, a.Header, key)
			}
			b.wantState(key, driver.StateUnknown)
			b.wantDoubt(b.pay(key), key, "")
		}
		b.wantRuns(7)
	}},
	{"an answer that a client would take for final is kept for the operator", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			if _, err := idem.CheckOwner(r.Context()); err != nil {
				b.Error(err)
			}
			w.Header().Set("X-Handler", "1")
			if key := r.Header.Get("Idempotency-Key"); key == "429" {
				w.Header().Set("Retry-After", "7")
			}
			http.Error(w, "no", map[string]int{"401": 401, "403": 403, "425": 425, "429": 429}[r.Header.Get("Idempotency-Key")])
		})
		for key, retryAfter := range map[string]string{"401": "", "403": "", "425": "", "429": "7"} {
			b.wantDoubt(b.pay(key), key, retryAfter)
			b.wantDoubt(b.pay(key), key, "")
			rec, err := b.records.Get(b.Context(), idem.NewKeyID("merchant", idem.Key(key)))
			if err != nil || rec.State != driver.StateUnknown || rec.Response == nil || fmt.Sprint(rec.Response.Status) != key {
				b.Errorf("record = %+v, %v, want the handler's %s", rec, err, key)
			}
		}
		b.wantRuns(4)
	}},
	{"a status that the policy names is in doubt", func(b *bundle) {
		b.policy.StatusesInDoubt = []int{http.StatusConflict}
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			http.Error(w, "aborted", http.StatusConflict) // a gateway's word for ABORTED
		})
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantState("k1", driver.StateUnknown)
		b.wantRuns(1)
	}},
	{"a refusal of a handler that was cut off is not told as final", func(b *bundle) {
		b.policy.HandlerTimeout = 1
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			<-r.Context().Done()
			http.Error(w, "declined", http.StatusPaymentRequired)
		})
		for range 2 {
			b.wantDoubt(b.pay("k1"), "k1", "")
		}
		b.wantRuns(1)
	}},
	{"a resolver that cannot tell is asked again, and its answer is the outcome", func(b *bundle) {
		var known atomic.Bool
		b.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			if !known.Load() {
				return idem.StillUnknown(), nil
			}
			return idem.Applied(idem.Response{Status: 201, Body: []byte("resolved")}), nil
		})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			http.Error(w, "the bank is late", http.StatusGatewayTimeout)
		})
		b.want(b.pay("k1"), 504, "the bank is late\n", false) // live, although the resolver was asked
		b.wantDoubt(b.pay("k1"), "k1", "1")
		known.Store(true)
		for range 2 {
			b.want(b.pay("k1"), 201, "resolved", true)
		}
		b.wantRuns(1)
	}},
	{"an operator's decision is the first answer with the mark", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		b.want(b.pay("k1"), 500, "", false)
		b.wantDoubt(b.pay("k1"), "k1", "")
		_, err := b.engine.Decide(b.Context(), idem.NewKeyID("merchant", "k1"), driver.Attempt{},
			idem.Applied(idem.Response{Status: 201, Body: []byte("decided")}), driver.Decision{By: "alice"}, &b.policy)
		if err != nil {
			b.Fatal(err)
		}
		b.want(b.pay("k1"), 201, "decided", true)
	}},
	{"a duplicate that waits for an attempt in doubt is not told its answer", func(b *bundle) {
		b.policy.DuplicateWait = patience
		running, goOn := make(chan struct{}), make(chan struct{})
		b.protect(func(w http.ResponseWriter, _ *http.Request) {
			close(running)
			<-goOn
			w.WriteHeader(http.StatusBadGateway)
		})
		answers := make(chan answer, 2)
		send := func() {
			a, err := b.trySend(b.request("POST", "/pay", "k1", payBody))
			if err != nil {
				b.Error(err)
			}
			answers <- a
		}
		go send()
		receive(b, "the first request", running)
		go send()
		b.eventually("the duplicate waits", func() bool { return b.events(telemetry.EventJoined) > 0 })
		close(goOn)
		first, second := receive(b, "an answer", answers), receive(b, "an answer", answers)
		if first.StatusCode == http.StatusConflict {
			first, second = second, first
		}
		b.want(first, 502, "", false)
		b.wantDoubt(second, "k1", "")
		b.wantRuns(1)
	}},
	{"a route that runs again ends in doubt at its limit", func(b *bundle) {
		b.policy.InDoubt, b.policy.MaxRuns = idem.RunAgain(), 3
		b.protect(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusInternalServerError) })
		for range 3 {
			b.want(b.pay("k1"), 500, "", false)
		}
		b.wantDoubt(b.pay("k1"), "k1", "")
		b.wantState("k1", driver.StateUnknown)
		b.wantRuns(3)
	}},
}

// wantDoubt checks what a client is told of a key in doubt. retryAfter is "" if nothing works
// on the outcome.
func (b *bundle) wantDoubt(a answer, key, retryAfter string) {
	b.Helper()
	b.wantProblem(a, idem.CodeOutcomeUnknown, retryAfter)
	var told struct {
		OperationID     string `json:"operation_id"`
		MayHaveHappened bool   `json:"may_have_happened"`
	}
	id := idem.NewKeyID("merchant", idem.Key(key)).OperationID()
	if err := json.Unmarshal([]byte(a.body), &told); err != nil || told.OperationID != id || !told.MayHaveHappened {
		b.Errorf("refusal = %s, %v, want the operation %s, and that it may have happened", a.body, err, id)
	}
}
