package faults

import (
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// nthMatch matches the request that is the n-th, from 0, that another one matches.
func nthMatch(n int, match testserver.Match) testserver.Match {
	seen := 0
	return func(r testserver.Request) bool {
		if !match(r) {
			return false
		}
		seen++
		return seen == n+1
	}
}

// The answers of Begin and of Settle are lost, one after the other, and the
// connection with them: applied, but the instance cannot know.
func TestRedisRepliesLostPayOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	p := s.RedisProxy()
	in := s.Start("one", kit.ThroughRedis(p))
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		for i := range 3 { // read, begin, settle
			key := kit.KeyFor(via, fmt.Sprintf("lost-%d", i))
			dropped := p.DropNextReply(nthMatch(i, testserver.Contains(kit.KeyID(key).String())))
			a := in.Client(via).PayWithRetries(key, kit.Amount, key)
			kit.WaitFor(t, "lost reply", dropped)
			kit.WantPayment(t, fmt.Sprintf("payment with reply %d lost", i), a, kit.WantOnePayment(t, in.Client(via), key))
		}
	})
}

// Replies of ZooKeeper are lost: to the create of the lock and to its delete.
func TestZooKeeperRepliesLostPayOnce(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	p := s.ZooKeeperProxy()
	in := s.Start("one", kit.ThroughZooKeeper(p))
	conn := s.ZooKeeper()
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		for i, what := range []string{"create", "delete"} {
			key := kit.KeyFor(via, "lost-"+what)
			dropped := p.DropNextReply(nthMatch(i, testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(kit.LockNode(key)))))
			a := in.Client(via).PayWithRetries(key, kit.Amount, key)
			kit.WaitFor(t, "lost reply of the "+what, dropped)
			kit.WantPayment(t, "payment with the reply of the "+what+" lost", a, kit.WantOnePayment(t, in.Client(via), key))
			s.WaitLock(conn, key, false)
		}
	})
}
