package clients

import (
	"fmt"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// counter counts what passes through a proxy.
type counter struct{ atomic.Int64 }

// count counts the requests for which count is true. As a rule of the proxy it
// sees each of them, and it never holds one.
func (c *counter) count(p *testserver.Proxy, count testserver.Match) {
	p.HoldNext(func(r testserver.Request) bool {
		if count(r) {
			c.Add(1)
		}
		return false
	})
}

// sinceLastCall returns what came since the last call.
func (c *counter) sinceLastCall() int64 { return c.Swap(0) }

const cost = "%d round trips to Redis, %d writes and %d reads at ZooKeeper"

// A fresh key costs three round trips to Redis and two writes to ZooKeeper,
// heartbeats aside, and a replay one round trip to Redis and nothing else. The
// sample's handler calls CheckOwner, which looks at the lock once.
func TestCostOfFreshKeysAndReplays(t *testing.T) {
	t.Parallel()
	s := kit.NewSystem(t)
	zkProxy := s.ZooKeeperProxy()
	// What go-redis writes at once, a pipeline too, arrives as one chunk.
	redisProxy := testserver.StartTCPProxy(t, s.Redis.Addr())
	in := s.Start("one", kit.ThroughZooKeeper(zkProxy), kit.ThroughRedis(redisProxy))
	conn := s.ZooKeeper()
	var roundTrips, writes, reads counter
	// The sweeper works meanwhile. What it asks, once in two seconds, names none of
	// these keys, and neither does the look for the eviction policy.
	onLock := testserver.Contains(s.Chroot + "/lock/" + costShard + "/")
	multi := testserver.Op(testserver.OpMulti)
	roundTrips.count(redisProxy, testserver.Contains(":"+costShard))
	writes.count(zkProxy, testserver.All(multi, onLock))
	reads.count(zkProxy, func(r testserver.Request) bool { return !multi(r) && onLock(r) })

	keys := sameShard(10 + 2*len(kit.Transports))
	pay := func(via kit.Transport, key string) kit.Answer {
		a := in.Client(via).Pay(key, 1, key)
		s.WaitLock(conn, key, false)
		return a
	}
	for _, via := range kit.Transports {
		for range 2 { // makes the shard's znode, loads the scripts, opens connections
			if a := in.Client(via).PayWithRetries(keys[0], 1, keys[0]); !a.IsPayment() {
				t.Fatalf("first payment = %v, want it made", a)
			}
			s.WaitLock(conn, keys[0], false)
			keys = keys[1:]
		}
	}
	n := len(keys) / len(kit.Transports)
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		mine := keys[:n]
		keys = keys[n:]
		roundTrips.sinceLastCall()
		writes.sinceLastCall()
		reads.sinceLastCall()
		for _, key := range mine {
			if a := pay(via, key); !a.IsPayment() || a.Replayed {
				t.Fatalf("payment = %v, want it made", a)
			}
		}
		got := fmt.Sprintf(cost, roundTrips.sinceLastCall(), writes.sinceLastCall(), reads.sinceLastCall())
		if want := fmt.Sprintf(cost, 3*n, 2*n, n); got != want {
			t.Errorf("%d fresh keys cost %s, want %s", n, got, want)
		}
		for _, key := range mine {
			if a := in.Client(via).Pay(key, 1, key); !a.Replayed {
				t.Fatalf("repeat = %v, want it replayed", a)
			}
		}
		got = fmt.Sprintf(cost, roundTrips.sinceLastCall(), writes.sinceLastCall(), reads.sinceLastCall())
		if want := fmt.Sprintf(cost, n, 0, 0); got != want {
			t.Errorf("%d replays cost %s, want %s", n, got, want)
		}
	})
}

// costShard begins the key IDs of the keys whose cost is counted.
const costShard = "abc"

// sameShard returns keys whose locks have one parent.
func sameShard(n int) []string {
	var keys []string
	for i := 0; len(keys) < n; i++ {
		key := fmt.Sprintf("shard-%d", i)
		if strings.HasPrefix(kit.KeyID(key).String(), costShard) {
			keys = append(keys, key)
		}
	}
	return keys
}
