package exchangetest

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/idemkeeper/idemkeeper/idem"
)

// rejectCases are about handlers that find fault with the request itself, before they do anything.
var rejectCases = []testCase{
	{"before the transaction leaves the key free", func(b *bundle) {
		ledger := b.joinLedger()
		b.protect(validating(b.pays(created)))
		b.want(b.send(b.request("POST", "/pay", "k1", `{"amount":0}`)), 422, "amount", false)
		b.want(b.send(b.request("POST", "/pay", "k1", `{"amount":0}`)), 422, "amount", false)
		if n := b.records.Len(); n != 0 {
			b.Errorf("%d records, want none", n)
		}
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, true)
		b.wantRefusal(b.send(b.request("POST", "/pay", "k1", `{"amount":0}`)), idem.CodeKeyReused)
		b.wantRuns(3)
		if n := ledger.payments(); n != 1 {
			b.Errorf("%d payments, want 1", n)
		}
	}},
	{"after the transaction was taken is the outcome", func(b *bundle) {
		b.joinLedger()
		b.protect(b.pays(validating(created)))
		for _, replayed := range []bool{false, true} {
			b.want(b.send(b.request("POST", "/pay", "k1", `{"amount":0}`)), 422, "amount", replayed)
		}
		b.wantRefusal(b.pay("k1"), idem.CodeKeyReused)
		b.wantRuns(1)
	}},
	{"before the gate leaves the key free where the policy states that the gate is first", func(b *bundle) {
		for _, b.policy.GateFirst = range []bool{false, true} {
			b.runs.Store(0)
			b.protect(validating(created))
			key := map[bool]string{false: "k1", true: "k2"}[b.policy.GateFirst]
			b.want(b.send(b.request("POST", "/pay", key, `{"amount":0}`)), 422, "amount", false)
			if b.policy.GateFirst {
				b.want(b.pay(key), 201, `{"id":"p1"}`, false)
				b.want(b.pay(key), 201, `{"id":"p1"}`, true)
				b.wantRuns(2)
			} else {
				b.wantRefusal(b.pay(key), idem.CodeKeyReused)
				b.wantRuns(1)
			}
		}
	}},
}

// validating answers 422 to an amount of 0, and else hands on to h.
func validating(h http.HandlerFunc) http.HandlerFunc {
	return func(w http.ResponseWriter, r *http.Request) {
		var order struct{ Amount int }
		if err := json.NewDecoder(r.Body).Decode(&order); err != nil || order.Amount == 0 {
			w.WriteHeader(http.StatusUnprocessableEntity)
			_, _ = io.WriteString(w, "amount")
			return
		}
		h(w, r)
	}
}
