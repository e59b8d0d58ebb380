package tests

import (
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// nth matches the request that is the n-th, from 0, that another one matches.
func nth(n int, match testserver.Match) testserver.Match {
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
	overEach(t, func(t *testing.T, via transport) {
		for i := range 3 { // read, begin, settle
			key := keyOver(via, fmt.Sprintf("lost-%d", i))
			dropped := p.DropNextReply(nth(i, testserver.Contains(keyID(key).String())))
			a := in.over(via).payUntil(patience, key, amount, key)
			happens(t, "lost reply", dropped)
			original(t, fmt.Sprintf("payment with reply %d lost", i), a, paidOnce(t, in.over(via), key))
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
	overEach(t, func(t *testing.T, via transport) {
		for i, what := range []string{"create", "delete"} {
			key := keyOver(via, "lost-"+what)
			dropped := p.DropNextReply(nth(i, testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(lockNode(key)))))
			a := in.over(via).payUntil(patience, key, amount, key)
			happens(t, "lost reply of the "+what, dropped)
			original(t, "payment with the reply of the "+what+" lost", a, paidOnce(t, in.over(via), key))
			s.waitLock(conn, key, false)
		}
	})
}
