package tests

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

func TestIssuedTokenPaysOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one"), s.start("two")
	overEach(t, func(t *testing.T, via transport) {
		token, note := one.over(via).issue(t), keyOver(via, "trade")
		if state, err := two.demo().state(token); err != nil || state != "issued" {
			t.Errorf("state = %q, %v, want issued", state, err)
		}
		first := one.over(via).tradeUntil(patience, token, amount, note)
		original(t, "trade", first, paidOnce(t, one.over(via), note))
		for _, in := range []*instance{one, two} {
			replayed(t, "repeat at "+in.name, in.over(via).trade(token, amount, note), first.payment)
			refused(t, "another trade with it", in.over(via).trade(token, amount+1, note), "key-reused")
		}
		paidOnce(t, two.over(via), note)
	})
}

// What is no token of this merchant is refused, costs ZooKeeper nothing, and
// leaves the token as it was.
func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.zooKeeperProxy()
	var locking counter
	locking.on(p, testserver.Contains(s.chroot+"/lock/"))
	in := s.start("one", throughZooKeeper(p))
	overEach(t, func(t *testing.T, via transport) {
		c, note := in.over(via), keyOver(via, "refused")
		token := c.issue(t)
		locking.since()
		refused(t, "junk", c.trade("junk", amount, note), "token-unknown")
		refused(t, "another merchant's", c.as("test").trade(token, amount, note), "token-unknown")
		refused(t, "a token as client key", c.pay(token, amount, note), "key-reused")
		refused(t, "none", c.send(t.Context(), toTrades, fromAlice(amount, note)), "key-missing")
		if n := locking.since(); n != 0 {
			t.Errorf("%d requests to ZooKeeper, want none", n)
		}

		key := keyOver(via, "client-key")
		a := c.payUntil(patience, key, amount, key)
		original(t, "payment", a, paidOnce(t, c, key))
		refused(t, "a client key as token", c.trade(key, amount, key), "token-unknown")
		if n := locking.since(); n == 0 {
			t.Error("the payment has not been counted at ZooKeeper: the counter is broken")
		}
		s.waitLock(s.zooKeeper(), key, false) // its delete is not to be counted next

		// A trade that is refused for its body leaves the token unused.
		refused(t, "bad body", c.trade(token, -1, note), "body-invalid")
		paidNever(t, c, note)
		used := keyOver(via, "used")
		a = c.tradeUntil(patience, token, amount, used)
		original(t, "trade", a, paidOnce(t, c, used))
		s.waitLock(s.zooKeeper(), token, false)
	})
}

// A token that is sent sixty times at once is used once.
func TestIssuedTokenUnderDuplicatesPaysOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := []*instance{s.start("one"), s.start("two")}
	overEach(t, func(t *testing.T, via transport) {
		token, note := all[0].over(via).issue(t), keyOver(via, "burst")
		answers := burst(60, func(i int) answer { return all[i%2].over(via).trade(token, amount, note) })
		want := paidOnce(t, all[0].over(via), note)
		for _, a := range answers {
			if !a.is("in-progress") && !a.is("unavailable") { // of a starved instance
				original(t, "answer", a, want)
			}
		}
		replayed(t, "repeat", all[1].over(via).tradeUntil(patience, token, amount, note), want)
	})
}
