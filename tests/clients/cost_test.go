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

	const n, tries = 5, 3
	keys := sameShard((2 + n*tries) * len(kit.Transports))
	for _, via := range kit.Transports {
		for range 2 { // makes the shard's znode, loads the scripts, opens connections
			if a := in.Client(via).PayWithRetries(keys[0], 1, keys[0]); !a.IsPayment() {
				t.Fatalf("first payment = %v, want it made", a)
			}
			s.WaitLock(conn, keys[0], false)
			keys = keys[1:]
		}
	}
	fresh, replays := fmt.Sprintf(cost, 3*n, 2*n, n), fmt.Sprintf(cost, n, 0, 0)
	spent := func() string {
		return fmt.Sprintf(cost, roundTrips.sinceLastCall(), writes.sinceLastCall(), reads.sinceLastCall())
	}
	kit.ForEachTransport(t, func(t *testing.T, via kit.Transport) {
		mine := keys[:n*tries]
		keys = keys[n*tries:]
		// On a starved machine the sweeper looks at payments that take long, so the best of three counts.
		var onFresh, onReplays string
		for ; len(mine) > 0 && (onFresh != fresh || onReplays != replays); mine = mine[n:] {
			spent()
			for _, key := range mine[:n] {
				if a := in.Client(via).PayWithRetries(key, 1, key); !a.IsPayment() {
					t.Fatalf("payment = %v, want it made", a)
				}
				s.WaitLock(conn, key, false)
			}
			onFresh = spent()
			for _, key := range mine[:n] {
				if a := in.Client(via).Pay(key, 1, key); !a.Replayed {
					t.Fatalf("repeat = %v, want it replayed", a)
				}
			}
			onReplays = spent()
		}
		if onFresh != fresh || onReplays != replays {
			t.Errorf("%d fresh keys cost %s, and %d replays %s, want %s and %s", n, onFresh, n, onReplays, fresh, replays)
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
