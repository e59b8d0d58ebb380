package redisstore

import (
	"fmt"
	"slices"
	"testing"
	"time"

	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// connectDogged is connect with a client that never gives a dead node's pool up:
// what waits then to dial anew outlives the client by a second.
func connectDogged(tb testing.TB, addr string) goredis.UniversalClient {
	tb.Helper()
	o, err := parseAddr(addr)
	if err != nil {
		tb.Fatalf("parseAddr(%q) = %v, want <nil>", addr, err)
	}
	o.PoolSize = 10000
	client := goredis.NewUniversalClient(o)
	tb.Cleanup(func() { _ = client.Close() })
	return client
}

// onOneNode returns a prefix with which all keys that are not a record's are on
// one primary, and its number.
func onOneNode(tb testing.TB, c *testserver.RedisCluster) (prefix string, number int) {
	tb.Helper()
	for i := range 1000 {
		l := newLayout(fmt.Sprintf("%s-%d", freshPrefix(tb), i))
		node, err := c.NodeFor(l.retired())
		if err != nil {
			tb.Fatal(err)
		}
		elsewhere := slices.ContainsFunc([]string{l.sealed(), l.decisions(0)}, func(key string) bool {
			other, err := c.NodeFor(key)
			return err != nil || other != node
		})
		if !elsewhere {
			return l.prefix, slices.Index(c.Nodes(), node)
		}
	}
	tb.Fatal("no prefix has its keys on one primary")
	return "", 0
}

// Every call finds the new primary by itself, not only those that run scripts.
func TestEveryCallFollowsAFailover(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithClusterReplicas())
	prefix, number := onOneNode(t, c)
	names := []string{"ListOpen", "Ping", "RetireDomain", "DomainRetired", "DeclareSealed", "Sealed", "Decisions"}
	stores := make(map[string]*Store) // what one of them learns the others do not know
	for _, name := range names {
		stores[name] = open(t, connectDogged(t, clusterAddr(c)), WithPrefix(prefix))
		if err := calls[name](t.Context(), stores[name]); err != nil {
			t.Fatalf("%s() = %v, want <nil>", name, err)
		}
	}
	master, replica := c.Nodes()[number], c.Replicas()[number]
	if err := master.AwaitReplica(replica); err != nil {
		t.Fatal(err)
	}
	master.Kill()
	if err := replica.TakeOver(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		t.Run(name, func(t *testing.T) {
			killed := time.Now()
			if err := reached(t, func() error { return calls[name](t.Context(), stores[name]) }); err != nil {
				t.Errorf("%s() after a failover = %v, want <nil>", name, err)
			}
			if took := time.Since(killed); took > 20*time.Second { // by itself the client takes a minute
				t.Errorf("%s() reached the new primary after %v, want it at once", name, took)
			}
		})
	}
}
