package testserver_test

import (
	"fmt"
	"testing"

	"github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestRedisCluster_SpreadsKeysAndSurvivesARestart(t *testing.T) {
	t.Parallel()
	c := testserver.StartRedisCluster(t, 3, testserver.WithRedisArgs("--appendonly", "yes", "--appendfsync", "always"))
	cl := redis.NewClusterClient(&redis.ClusterOptions{Addrs: c.Addrs()})
	t.Cleanup(func() { cl.Close() })
	for i := range 30 {
		if err := cl.Set(t.Context(), fmt.Sprintf("k%d", i), i, 0).Err(); err != nil {
			t.Fatalf("SET = %v", err)
		}
	}
	for _, r := range c.Nodes() {
		if got, err := r.Do("DBSIZE"); err != nil || got[0] == "0" {
			t.Errorf("DBSIZE of %s = %v, %v, want some keys", r.Addr(), got, err)
		}
	}
	node, err := c.NodeFor("k0")
	if err != nil {
		t.Fatalf("NodeFor = %v", err)
	}
	node.Kill()
	node.Restart()
	if err := c.AwaitComplete(); err != nil {
		t.Fatalf("AwaitComplete = %v", err)
	}
	if got, err := node.Do("GET", "k0"); err != nil || got[0] != "0" {
		t.Fatalf("GET k0 from its node = %v, %v, want 0", got, err)
	}
}
