package idemctl

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

// A repeat after record forget is told that the answer is gone, and pays nothing.
func TestForgottenAnswerIsUnavailable(t *testing.T) {
	s, _, other := kit.SystemWithVictim(t)
	c := other.HTTPClient()
	const key = "to-be-forgotten"
	if a := c.PayWithRetries(key, kit.Amount, key); !a.IsPayment() {
		t.Fatalf("payment = %v", a)
	}
	if out, code := s.OutputOf("record", "forget", "--scope", "merchant_demo", key, "--reason", "erasure"); code != 0 || !strings.Contains(out, "answer removed") {
		t.Fatalf("record forget = %q, exit code %d", out, code)
	}
	kit.WantRefusal(t, "retry", c.PayWithRetries(key, kit.Amount, key), "result-unavailable")
	kit.WantOnePayment(t, c, key)
}
