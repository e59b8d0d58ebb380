package tests

import "testing"

// The status of a key follows it, for its merchant and for nobody else. It is
// asked over HTTP whatever the key is used over.
func TestStatusFollowsTheKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, other := s.start("one", latency(victimLatency)), s.start("other")
	want := func(t *testing.T, c client, key, state string) {
		t.Helper()
		if got, err := c.state(key); err != nil || got != state {
			t.Errorf("state of %q = %q, %v, want %s", key, got, err, state)
		}
	}
	for _, via := range transports {
		key, c := keyOver(via, "followed"), other.over(via)
		want(t, c, key, "none")
		refused(t, "bad body", c.pay(key, -1, key), "body-invalid")
		want(t, c, key, "none")
	}
	all := in.reachOverEach(t, "followed", "at=before-ledger")
	for _, r := range all {
		want(t, other.demo(), r.key, "pending")
		want(t, other.demo().as("test"), r.key, "none")
	}
	overEachOf(t, all, func(t *testing.T, r running) {
		c := other.over(r.via)
		original(t, "payment", <-r.done, paidOnce(t, c, r.key))
		want(t, c, r.key, "completed")

		token, note := c.issue(t), keyOver(r.via, "token")
		want(t, in.over(r.via), token, "issued")
		refused(t, "bad body with a token", c.trade(token, -1, note), "body-invalid")
		want(t, in.over(r.via), token, "issued")
		if a := c.tradeUntil(patience, token, amount, note); !a.paid() {
			t.Fatalf("trade = %v, want it made", a)
		}
		want(t, in.over(r.via), token, "completed")
	})
}
