package redislock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/alicebob/miniredis/v2"
	goredis "github.com/redis/go-redis/v9"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
)

// A service opens a locker on a client of its own, gives it to the engine, and
// closes first the locker, then the client.
func Example() {
	server := miniredis.NewMiniRedis() // stands for a real one
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	client := goredis.NewClient(&goredis.Options{Addr: server.Addr(), ContextTimeoutEnabled: true})
	defer client.Close()
	locker, err := redislock.New(ctx, client, redislock.WithPrefix("payments"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = locker.Close(ctx) }()

	lock := driver.LockRequest{KeyID: idem.NewKeyID("tenant-1", "order-4711"), Nonce: driver.NewNonce()}
	lease, err := locker.TryAcquire(ctx, lock)
	if err != nil {
		fmt.Println(err)
		return
	}
	_, err = locker.TryAcquire(ctx, lock)
	fmt.Println("again:", errors.Is(err, driver.ErrLocked))
	if _, err := lease.Check(ctx); err == nil {
		fmt.Println("still ours: send, with the fence") // lease.Fence(), which the resource checks
	}
	fmt.Println("released:", lease.Release(ctx))
	// Output:
	// again: true
	// still ours: send, with the fence
	// released: <nil>
}
