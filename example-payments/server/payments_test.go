package server_test

import (
	"net/url"
	"regexp"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
)

func TestPaymentIsMadeOnceAndReplayed(t *testing.T) {
	_, c := setup(t)
	first := c.pay("k", order)
	first.wantAnswer(t, "first", 201, "")
	shape := regexp.MustCompile(`^\{"id":"pay_[0-9a-f]{32}","from":"alice","to":"bob","amount":1250,"currency":"USD","note":"n","status":"succeeded","created_at":"[^"]+Z"\}$`)
	if !shape.MatchString(first.body) || first.replayed() {
		t.Errorf("first: %s, replayed: %v, want %v and no replay", first.body, first.replayed(), shape)
	}
	location := first.header.Get("Location")
	if location != "/v1/payments/"+first.field("id") {
		t.Errorf("Location %q, want that of %s", location, first.body)
	}
	for _, body := range []string{order, strings.ReplaceAll(order, ",", " , ")} {
		again := c.pay("k", body)
		if again.status != 201 || again.body != first.body || again.header.Get("Location") != location || !again.replayed() {
			t.Errorf("repeat: %d %s %v, want the first answer, replayed", again.status, again.body, again.header)
		}
	}
	if quoted := c.pay(`"k"`, order); quoted.body != first.body {
		t.Errorf("repeat with the quoted key: %s, want %s", quoted.body, first.body)
	}
	if got := c.do("GET", location, ""); got.status != 200 || got.body != first.body {
		t.Errorf("GET %s: %d %s, want %s", location, got.status, got.body, first.body)
	}
	if n := c.payments(); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
	if got := c.do("GET", "/v1/accounts/alice", "").body; got != `{"id":"alice","balance":998750,"currency":"USD"}` {
		t.Errorf("alice: %s", got)
	}
}

func TestRefusedPaymentsAreStoredAndReplayed(t *testing.T) {
	tests := []struct {
		name, old, new string
		status         int
		code           string
	}{
		{"no money", "1250", "1000001", 402, "insufficient-funds"},
		{"no payer", "alice", "zoe", 404, "account-unknown"},
		{"no payee", "bob", "zoe", 404, "account-unknown"},
		{"other currency", "USD", "EUR", 400, "currency-mismatch"},
	}
	_, c := setup(t)
	for _, tt := range tests {
		body := strings.Replace(order, tt.old, tt.new, 1)
		first := c.pay(url.QueryEscape(tt.name), body)
		first.wantAnswer(t, tt.name, tt.status, tt.code)
		again := c.pay(url.QueryEscape(tt.name), body)
		if again.status != tt.status || again.body != first.body || !again.replayed() ||
			again.header.Get("Content-Type") != "application/problem+json" {
			t.Errorf("%s, repeated: %d %s, want %s replayed", tt.name, again.status, again.body, first.body)
		}
	}
	if n := c.payments(); n != 0 {
		t.Errorf("%d payments, want none", n)
	}
}

func TestKeysThatAreRefused(t *testing.T) {
	_, c := setup(t)
	c.do("POST", "/v1/payments", order).wantAnswer(t, "no key", 400, "key-missing")
	c.pay("", order).wantAnswer(t, "empty key", 400, "key-invalid")
	c.pay("a, b", order).wantAnswer(t, "two keys", 400, "key-invalid")
	c.pay(strings.Repeat("k", 256), order).wantAnswer(t, "long key", 400, "key-invalid")
	c.pay("k", order).wantAnswer(t, "first use", 201, "")
	c.pay("k", strings.Replace(order, "1250", "1251", 1)).wantAnswer(t, "another amount", 422, "key-reused")
	c.pay("k2", order).wantAnswer(t, "the same order with another key", 201, "")
	if n := c.payments(); n != 2 {
		t.Errorf("%d payments, want 2", n)
	}
}

func TestInvalidBodiesLeaveTheKeyUntouched(t *testing.T) {
	_, c := setup(t)
	c.pay("k", `{"from":"alice"}`).wantAnswer(t, "incomplete", 400, "body-invalid")
	c.pay("k", strings.Replace(order, "1250", "12.50", 1)).wantAnswer(t, "fraction", 400, "body-invalid")
	c.do("POST", "/v1/payments", "{").wantAnswer(t, "neither key nor body", 400, "body-invalid")
	tooLong := order + strings.Repeat(" ", idem.DefaultMaxRequestBody)
	c.pay("k", tooLong).wantAnswer(t, "too long", 413, "body-too-large")
	if got := c.state("k"); got != "none" {
		t.Errorf("state %q, want none", got)
	}
	full := order + strings.Repeat(" ", idem.DefaultMaxRequestBody-len(order))
	c.pay("k", full).wantAnswer(t, "as long as allowed", 201, "")
	if got := c.state("k"); got != "completed" {
		t.Errorf("state %q, want completed", got)
	}
}

func TestKeysAndPaymentsAreTheMerchantsOwn(t *testing.T) {
	_, c := setup(t)
	other := []string{"Authorization", "Bearer test"}
	first := c.pay("k", order)
	if got := c.do("GET", "/v1/idempotency", "", append(other, "Idempotency-Key", "k")...).field("state"); got != "none" {
		t.Errorf("state for another merchant: %q, want none", got)
	}
	theirs := c.pay("k", order, other...)
	if theirs.status != 201 || theirs.replayed() || theirs.body == first.body {
		t.Errorf("another merchant's payment with the key: %d %s, want one of their own", theirs.status, theirs.body)
	}
	c.do("GET", first.header.Get("Location"), "", other...).wantAnswer(t, "another merchant's payment", 404, "payment-unknown")
	list := c.do("GET", "/v1/payments", "", other...)
	if strings.Contains(list.body, first.field("id")) || !strings.Contains(list.body, theirs.field("id")) {
		t.Errorf("another merchant's list: %s", list.body)
	}
}
