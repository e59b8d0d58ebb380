package tests

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestIssuedTokenPaysOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	one, two := s.start("one"), s.start("two")
	forEachTransport(t, func(t *testing.T, via transport) {
		token, note := one.client(via).issueToken(t), keyFor(via, "trade")
		if state, err := two.httpClient().keyState(token); err != nil || state != "issued" {
			t.Errorf("state = %q, %v, want issued", state, err)
		}
		first := one.client(via).tradeWithRetries(token, amount, note)
		wantPayment(t, "trade", first, wantOnePayment(t, one.client(via), note))
		for _, in := range []*instance{one, two} {
			wantReplay(t, "repeat at "+in.name, in.client(via).trade(token, amount, note), first.payment)
			wantRefusal(t, "another trade with it", in.client(via).trade(token, amount+1, note), "key-reused")
		}
		wantOnePayment(t, two.client(via), note)
	})
}

// What is no token of this merchant is refused, costs ZooKeeper nothing, and
// leaves the token as it was.
func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.zooKeeperProxy()
	var locking counter
	locking.count(p, testserver.Contains(s.chroot+"/lock/"))
	in := s.start("one", throughZooKeeper(p))
	forEachTransport(t, func(t *testing.T, via transport) {
		c, note := in.client(via), keyFor(via, "refused")
		token := c.issueToken(t)
		locking.sinceLastCall()
		wantRefusal(t, "junk", c.trade("junk", amount, note), "token-unknown")
		wantRefusal(t, "another merchant's", c.as("test").trade(token, amount, note), "token-unknown")
		wantRefusal(t, "a token as client key", c.pay(token, amount, note), "key-reused")
		wantRefusal(t, "none", c.send(t.Context(), toTrades, fromAlice(amount, note)), "key-missing")
		if n := locking.sinceLastCall(); n != 0 {
			t.Errorf("%d requests to ZooKeeper, want none", n)
		}

		key := keyFor(via, "client-key")
		wantPaidOnce(t, "payment", c, key)
		wantRefusal(t, "a client key as token", c.trade(key, amount, key), "token-unknown")
		if n := locking.sinceLastCall(); n == 0 {
			t.Error("the payment has not been counted at ZooKeeper: the counter is broken")
		}
		s.waitLock(s.zooKeeper(), key, false) // its delete is not to be counted next

		// A trade that is refused for its body leaves the token unused.
		wantRefusal(t, "bad body", c.trade(token, -1, note), "body-invalid")
		wantNoPayment(t, c, note)
		used := keyFor(via, "used")
		a := c.tradeWithRetries(token, amount, used)
		wantPayment(t, "trade", a, wantOnePayment(t, c, used))
		s.waitLock(s.zooKeeper(), token, false)
	})
}

// A token that is sent sixty times at once is used once.
func TestIssuedTokenUnderDuplicatesPaysOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	all := []*instance{s.start("one"), s.start("two")}
	forEachTransport(t, func(t *testing.T, via transport) {
		token, note := all[0].client(via).issueToken(t), keyFor(via, "burst")
		answers := sendAtOnce(60, func(i int) answer { return all[i%2].client(via).trade(token, amount, note) })
		want := wantOnePayment(t, all[0].client(via), note)
		for _, a := range answers {
			if !a.isRefusal("in-progress") && !a.isRefusal("unavailable") { // of a starved instance
				wantPayment(t, "answer", a, want)
			}
		}
		wantReplay(t, "repeat", all[1].client(via).tradeWithRetries(token, amount, note), want)
	})
}
