package clients

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// What is no token of this merchant is refused, costs ZooKeeper nothing, and
// leaves the token as it was.
func TestTokensThatAreRefused(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	p := s.ZooKeeperProxy()
	var locking counter
	locking.count(p, testserver.Contains(s.Chroot+"/lock/"))
	in := s.Start("one", kit.ThroughZooKeeper(p))
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		c, note := in.Client(via), kit.KeyFor(via, "refused")
		token := c.IssueToken(t)
		locking.sinceLastCall()
		kit.WantRefusal(t, "junk", c.Trade("junk", kit.Amount, note), "token-unknown")
		kit.WantRefusal(t, "another merchant's", c.As("test").Trade(token, kit.Amount, note), "token-unknown")
		kit.WantRefusal(t, "a token as client key", c.Pay(token, kit.Amount, note), "key-reused")
		kit.WantRefusal(t, "none", c.Send(t.Context(), kit.ToTrades, kit.FromAlice(kit.Amount, note)), "key-missing")
		if n := locking.sinceLastCall(); n != 0 {
			t.Errorf("%d requests to ZooKeeper, want none", n)
		}

		key := kit.KeyFor(via, "client-key")
		kit.WantPaidOnce(t, "payment", c, key)
		kit.WantRefusal(t, "a client key as token", c.Trade(key, kit.Amount, key), "token-unknown")
		if n := locking.sinceLastCall(); n == 0 {
			t.Error("the payment has not been counted at ZooKeeper: the counter is broken")
		}
		s.WaitLock(s.ZooKeeper(), key, false) // its delete is not to be counted next

		// A trade that is refused for its body leaves the token unused.
		kit.WantRefusal(t, "bad body", c.Trade(token, -1, note), "body-invalid")
		kit.WantNoPayment(t, c, note)
		used := kit.KeyFor(via, "used")
		a := c.TradeWithRetries(token, kit.Amount, used)
		kit.WantPayment(t, "trade", a, kit.WantOnePayment(t, c, used))
		s.WaitLock(s.ZooKeeper(), token, false)
	})
}

// A token that is sent sixty times at once is used once.
func TestIssuedTokenUnderDuplicatesPaysOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	all := []*kit.Instance{s.Start("one"), s.Start("two")}
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		token, note := all[0].Client(via).IssueToken(t), kit.KeyFor(via, "burst")
		answers := sendAtOnce(60, func(i int) kit.Answer { return all[i%2].Client(via).Trade(token, kit.Amount, note) })
		want := kit.WantOnePayment(t, all[0].Client(via), note)
		for _, a := range answers {
			if !a.IsRefusal("in-progress") && !a.IsRefusal("unavailable") { // of a starved instance
				kit.WantPayment(t, "answer", a, want)
			}
		}
		for _, in := range all {
			kit.WantReplay(t, "repeat at "+in.Name, in.Client(via).TradeWithRetries(token, kit.Amount, note), want)
			kit.WantRefusal(t, "another trade with it", in.Client(via).Trade(token, kit.Amount+1, note), "key-reused")
		}
	})
}
