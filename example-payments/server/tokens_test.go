package server_test

import (
	"strings"
	"testing"
	"time"
)

func (c *client) token() string {
	c.t.Helper()
	a := c.do("POST", "/v1/tokens", "")
	expires, err := time.Parse(time.RFC3339, a.field("expires_at"))
	if a.status != 201 || a.field("token") == "" || err != nil || time.Until(expires) < time.Minute {
		c.t.Fatalf("POST /v1/tokens: %d %s", a.status, a.body)
	}
	return a.field("token")
}

func (c *client) trade(key, body string, pairs ...string) answer {
	c.t.Helper()
	return c.do("POST", "/v1/trades", body, append([]string{"Idempotency-Key", key}, pairs...)...)
}

func TestTradeConsumesItsToken(t *testing.T) {
	_, c := setup(t)
	token := c.token()
	if got := c.state(token); got != "issued" {
		t.Errorf("state %q, want issued", got)
	}
	c.trade(token, "{}").wantAnswer(t, "invalid body", 400, "body-invalid")
	if got := c.state(token); got != "issued" {
		t.Errorf("state after an invalid body %q, want issued", got)
	}
	first := c.trade(token, order)
	first.wantAnswer(t, "trade", 201, "")
	again := c.trade(token, order)
	if again.body != first.body || !again.replayed() || again.header.Get("Location") != "/v1/payments/"+first.field("id") {
		t.Errorf("repeat: %d %s, want %s replayed", again.status, again.body, first.body)
	}
	c.trade(token, strings.Replace(order, `"n"`, `"m"`, 1)).wantAnswer(t, "another trade", 422, "key-reused")
	if got := c.state(token); got != "completed" {
		t.Errorf("state %q, want completed", got)
	}
	if n := c.payments(); n != 1 {
		t.Errorf("%d payments, want 1", n)
	}
}

func TestKindsOfKeyDoNotMix(t *testing.T) {
	_, c := setup(t)
	token := c.token()
	c.pay(token, order).wantAnswer(t, "issued token where a client key is wanted", 422, "key-reused")
	c.trade("invented", order).wantAnswer(t, "invented token", 403, "token-unknown")
	c.pay("k", order).wantAnswer(t, "payment", 201, "")
	c.trade("k", order).wantAnswer(t, "client key where a token is wanted", 403, "token-unknown")
	c.trade(token, order, "Authorization", "Bearer test").wantAnswer(t, "another merchant's token", 403, "token-unknown")
	c.do("POST", "/v1/trades", order).wantAnswer(t, "no token", 400, "key-missing")
	c.trade(token, order).wantAnswer(t, "the token is still good", 201, "")
}
