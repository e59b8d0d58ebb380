package tests

import "testing"

// The status of a key follows it, for its merchant and for nobody else.
func TestStatusFollowsTheKey(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, other := s.start("one", latency(victimLatency)), s.start("other")
	const key = "followed"
	want := func(c client, key, state string) {
		t.Helper()
		if got, err := c.state(key); err != nil || got != state {
			t.Errorf("state of %q = %q, %v, want %s", key, got, err, state)
		}
	}
	want(other.demo(), key, "none")
	refused(t, "bad body", other.demo().pay(key, -1, key), 400, "body-invalid")
	want(other.demo(), key, "none")
	done := in.demo().paying(key, amount, key)
	in.waitLog(t, "at=before-ledger", op(key))
	want(other.demo(), key, "pending")
	want(client{other.addr, "test"}, key, "none")
	original(t, "payment", <-done, paidOnce(t, other.demo(), key))
	want(other.demo(), key, "completed")

	token := other.demo().issue(t)
	want(in.demo(), token, "issued")
	refused(t, "bad body with a token", other.demo().trade(token, -1, key), 400, "body-invalid")
	want(in.demo(), token, "issued")
	if a := other.demo().trade(token, amount, "token"); a.status != 201 {
		t.Fatalf("trade = %v, want 201", a)
	}
	want(in.demo(), token, "completed")
}
