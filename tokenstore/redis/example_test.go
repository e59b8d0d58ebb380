package redisstore_test

import (
	"context"
	"fmt"
	"time"

	"github.com/alicebob/miniredis/v2"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/recipes"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// A service connects, opens the store and gives it to the engine. It closes the
// client when it stops.
func Example() {
	server := miniredis.NewMiniRedis() // stands for a real one
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	client, err := redisstore.Connect("redis://" + server.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	store, err := redisstore.New(ctx, client, redisstore.WithPrefix("payments"))
	if err != nil {
		fmt.Println(err)
		return
	}
	// driver.ErrStoreLost until an operator has called AcceptLoss.
	fmt.Println("ping:", store.Ping(ctx))
	// Output: ping: <nil>
}

// A witness in ZooKeeper remembers which Redis has the records. A process that starts after Redis
// has lost them then gets driver.ErrStoreLost.
func ExampleWithWitness() {
	open := func(ctx context.Context, locks *zookeeper.Client) (*redisstore.Store, error) {
		client, err := redisstore.Connect("redis://redis:6379")
		if err != nil {
			return nil, err
		}
		return redisstore.New(ctx, client, redisstore.WithWitness(recipes.Registers(locks)))
	}
	_ = open // it needs servers
	// Output:
}
