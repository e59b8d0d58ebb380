package idemzk_test

import (
	"context"
	"time"

	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// The service of a team that shares ensemble and Redis with other teams. Its records, locks, markers and witness are its own by the prefix.
func Example() {
	start := func(ctx context.Context) (*idem.Engine, error) {
		client, err := redisstore.Connect("redis://redis:6379")
		if err != nil {
			return nil, err
		}
		return idemzk.New(ctx, zookeeper.Config{
			Servers:     []string{"zk1:2181", "zk2:2181", "zk3:2181"},
			Credentials: []zookeeper.Credential{{Scheme: "digest", Secret: []byte("payments:secret")}},
		}, client, idemzk.WithDurableMarkers(time.Hour), redisstore.WithPrefix("payments"))
	}
	_ = start // it needs servers
	// Output:
}
