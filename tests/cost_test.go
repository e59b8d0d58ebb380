package tests

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// counter counts what passes through a proxy.
type counter struct{ atomic.Int64 }

// on counts the requests for which count is true. As a rule of the proxy it
// sees each of them, and it never holds one.
func (c *counter) on(p *testserver.Proxy, count testserver.Match) {
	p.HoldNext(func(r testserver.Request) bool {
		if count(r) {
			c.Add(1)
		}
		return false
	})
}

// since returns what came since the last call.
func (c *counter) since() int64 { return c.Swap(0) }

const cost = "%d round trips to Redis, %d writes and %d reads at ZooKeeper"

// A fresh key costs three round trips to Redis and two writes to ZooKeeper,
// heartbeats aside, and a replay one round trip to Redis and nothing else. The
// sample's handler calls CheckOwner, which looks at the lock once.
func TestCostOfFreshKeysAndReplays(t *testing.T) {
	t.Parallel()
	s := newSystem(t)
	zkProxy := s.zooKeeperProxy()
	// What go-redis writes at once, a pipeline too, arrives as one chunk.
	redisProxy := testserver.StartTCPProxy(t, s.redis.Addr())
	in := s.start("one", throughZooKeeper(zkProxy), throughRedis(redisProxy))
	conn := s.zooKeeper()

	keys := sameShard(12)
	pay := func(key string) answer {
		a := in.demo().pay(key, 1, key)
		s.waitLock(conn, key, false)
		return a
	}
	for range 2 { // makes the shard's znode, loads the scripts, opens connections
		if a := pay(keys[0]); a.status != 201 {
			t.Fatalf("first payment = %v, want 201", a)
		}
		keys = keys[1:]
	}

	var roundTrips, writes, reads counter
	onLock := testserver.Contains(s.chroot + "/lock")
	multi := testserver.Op(testserver.OpMulti)
	roundTrips.on(redisProxy, func(testserver.Request) bool { return true })
	writes.on(zkProxy, testserver.All(multi, onLock))
	reads.on(zkProxy, func(r testserver.Request) bool {
		return r.Op != testserver.OpPing && !multi(r)
	})
	n := int64(len(keys))
	for _, key := range keys {
		if a := pay(key); a.status != 201 || a.replayed() {
			t.Fatalf("payment = %v, want 201", a)
		}
	}
	got := fmt.Sprintf(cost, roundTrips.since(), writes.since(), reads.since())
	if want := fmt.Sprintf(cost, 3*n, 2*n, n); got != want {
		t.Errorf("%d fresh keys cost %s, want %s", n, got, want)
	}
	for _, key := range keys {
		if a := in.demo().pay(key, 1, key); !a.replayed() {
			t.Fatalf("repeat = %v, want it replayed", a)
		}
	}
	got = fmt.Sprintf(cost, roundTrips.since(), writes.since(), reads.since())
	if want := fmt.Sprintf(cost, n, 0, 0); got != want {
		t.Errorf("%d replays cost %s, want %s", n, got, want)
	}
}

// sameShard returns keys whose locks have one parent.
func sameShard(n int) []string {
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("shard-%d", i)
		if strings.HasPrefix(keyID(key).String(), "abc") {
			keys = append(keys, key)
		}
	}
	return keys
}
