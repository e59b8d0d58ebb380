package tests

import (
	"fmt"
	"testing"

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
	s := newSystem(t)
	p := s.redisProxy()
	in := s.start("one", throughRedis(p))
	forEachTransport(t, func(t *testing.T, via transport) {
		for i := range 3 { // read, begin, settle
			key := keyFor(via, fmt.Sprintf("lost-%d", i))
			dropped := p.DropNextReply(nthMatch(i, testserver.Contains(keyID(key).String())))
			a := in.client(via).payWithRetries(key, amount, key)
			waitFor(t, "lost reply", dropped)
			wantPayment(t, fmt.Sprintf("payment with reply %d lost", i), a, wantOnePayment(t, in.client(via), key))
		}
	})
}

// Replies of ZooKeeper are lost: to the create of the lock and to its delete.
func TestZooKeeperRepliesLostPayOnce(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	p := s.zooKeeperProxy()
	in := s.start("one", throughZooKeeper(p))
	conn := s.zooKeeper()
	forEachTransport(t, func(t *testing.T, via transport) {
		for i, what := range []string{"create", "delete"} {
			key := keyFor(via, "lost-"+what)
			dropped := p.DropNextReply(nthMatch(i, testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(lockNode(key)))))
			a := in.client(via).payWithRetries(key, amount, key)
			waitFor(t, "lost reply of the "+what, dropped)
			wantPayment(t, "payment with the reply of the "+what+" lost", a, wantOnePayment(t, in.client(via), key))
			s.waitLock(conn, key, false)
		}
	})
}
