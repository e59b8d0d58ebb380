package tests

import (
	"context"
	"encoding/json"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// issue asks for a one-time token.
func (c client) issue(t testing.TB) string {
	t.Helper()
	a := c.send(context.Background(), http.MethodPost, "/v1/tokens", "", nil)
	var body struct {
		Token     string
		ExpiresAt time.Time `json:"expires_at"`
	}
	if a.err != nil || a.status != http.StatusCreated {
		t.Fatalf("token = %v, want 201", a)
	}
	if err := json.Unmarshal([]byte(a.body), &body); err != nil || body.Token == "" || time.Until(body.ExpiresAt) <= 0 {
		t.Fatalf("token = %v (%v), want a token and when it expires", a, err)
	}
	return body.Token
}

func TestIssuedTokenPaysOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one"), s.start("two")
	token := one.demo().issue(t)
	if state, err := two.demo().state(token); err != nil || state != "issued" {
		t.Errorf("state = %q, %v, want issued", state, err)
	}
	first := one.demo().trade(token, amount, "trade")
	original(t, "trade", first, paidOnce(t, one.demo(), "trade"))
	for _, in := range []*instance{one, two} {
		again := in.demo().trade(token, amount, "trade")
		original(t, "repeat at "+in.name, again, first.payment)
		if !again.replayed() {
			t.Errorf("repeat at %s = %v, want it replayed", in.name, again)
		}
		refused(t, "another trade with it", in.demo().trade(token, amount+1, "trade"), 422, "key-reused")
	}
	paidOnce(t, two.demo(), "trade")
}

// What is no token of this merchant is refused, costs ZooKeeper nothing, and
// leaves the token as it was.
func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.zooKeeperProxy()
	var locking atomic.Int64
	root := testserver.Contains(s.chroot + "/lock/")
	p.HoldNext(func(r testserver.Request) bool { // counts, and never holds
		if root(r) {
			locking.Add(1)
		}
		return false
	})
	in := s.start("one", throughZooKeeper(p))
	token := in.demo().issue(t)
	test := client{in.addr, "test"}

	refused(t, "junk", in.demo().trade("junk", amount, "refused"), 403, "token-unknown")
	refused(t, "another merchant's", test.trade(token, amount, "refused"), 403, "token-unknown")
	refused(t, "a token as client key", in.demo().pay(token, amount, "refused"), 422, "key-reused")
	refused(t, "none", in.demo().send(t.Context(), http.MethodPost, "/v1/trades", goodBody, nil), 400, "key-missing")
	if n := locking.Load(); n != 0 {
		t.Errorf("%d requests to ZooKeeper, want none", n)
	}

	client := in.demo().pay("client-key", amount, "client-key")
	original(t, "payment", client, paidOnce(t, in.demo(), "client-key"))
	refused(t, "a client key as token", in.demo().trade("client-key", amount, "client-key"), 403, "token-unknown")
	if n := locking.Load(); n == 0 {
		t.Error("the payment has not been counted at ZooKeeper: the counter is broken")
	}

	// A trade that is refused for its body leaves the token unused.
	bad := in.demo().trade(token, -1, "refused")
	refused(t, "bad body", bad, 400, "body-invalid")
	paidNever(t, in.demo(), "refused")
	a := in.demo().trade(token, amount, "used")
	original(t, "trade", a, paidOnce(t, in.demo(), "used"))
}

// A token that is sent sixty times at once is used once.
func TestIssuedTokenUnderDuplicatesPaysOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	in, two := s.start("one"), s.start("two")
	token := in.demo().issue(t)
	const duplicates = 30
	answers := make(chan answer, 2*duplicates)
	for range duplicates {
		for _, at := range []*instance{in, two} {
			go func() { answers <- at.demo().trade(token, amount, "burst") }()
		}
	}
	for range 2 * duplicates {
		if a := <-answers; a.status != 201 && !a.is(409, "in-progress") {
			t.Errorf("answer = %v, want 201 or 409 in-progress", a)
		}
	}
	a := two.demo().trade(token, amount, "burst")
	original(t, "repeat", a, paidOnce(t, in.demo(), "burst"))
}
