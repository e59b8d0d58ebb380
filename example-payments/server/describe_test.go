package server_test

import (
	"encoding/json"
	"strings"
	"testing"
)

func TestRefusalsPointToTheirDocumentation(t *testing.T) {
	_, c := setup(t)
	c.pay("k1", order).wantAnswer(t, "first", 201, "")
	page := c.do("GET", "/docs/idempotency", "")
	if page.status != 200 || !strings.Contains(page.body, "24 hours") || !strings.Contains(page.body, "7 days") {
		t.Fatalf("GET /docs/idempotency = %d %s, want how long keys are kept", page.status, page.body)
	}
	for code, a := range map[string]answer{
		"key-missing":   c.do("POST", "/v1/payments", order),
		"key-invalid":   c.pay("a, b", order),
		"body-invalid":  c.pay("k2", "{"),
		"key-reused":    c.pay("k1", strings.Replace(order, "1250", "1251", 1)),
		"token-unknown": c.do("POST", "/v1/trades", order, "Idempotency-Key", "k1"),
	} {
		var p struct{ Type string }
		want := "/docs/idempotency#" + code
		if err := json.Unmarshal([]byte(a.body), &p); err != nil || p.Type != want {
			t.Errorf("%s: type %q of %s, %v, want %q", code, p.Type, a.body, err, want)
		}
		if got := a.header.Get("Link"); got != "<"+want+`>; rel="describedby"; type="text/html"` {
			t.Errorf("%s: Link %q", code, got)
		}
		if !strings.Contains(page.body, `id="`+code+`"`) {
			t.Errorf("the page has no fragment %q", code)
		}
	}
	if a := c.do("GET", "/nowhere", ""); strings.Contains(a.body, `"type"`) || a.header.Get("Link") != "" {
		t.Errorf("GET /nowhere points to %q: %s", a.header.Get("Link"), a.body)
	}
}
