package zookeeper_test

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func ExampleParseConnectString() {
	servers, chroot, err := zookeeper.ParseConnectString("zk1:2181,zk2:2181,zk3:2181/payments")
	fmt.Println(servers, chroot, err)
	// Output: [zk1:2181 zk2:2181 zk3:2181] /payments <nil>
}

// A client opens a session, takes the lock of a key, and gives the fence to the resource.
func ExampleOpen() {
	pay := func(ctx context.Context, charge func(context.Context, driver.Fence) error) error {
		servers, chroot, err := zookeeper.ParseConnectString("zk1:2181,zk2:2181,zk3:2181/payments")
		if err != nil {
			return err
		}
		client, err := zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot})
		if err != nil {
			return err
		}
		defer func() { _ = client.Close(ctx) }()

		lease, err := client.Locker().TryAcquire(ctx, driver.LockRequest{
			KeyID: idem.NewKeyID("tenant-1", "order-4711"),
			Nonce: driver.NewNonce(),
		})
		if err != nil {
			return err // driver.ErrLocked: somebody else is at it
		}
		defer lease.ReleaseInBackground()
		if _, err := lease.Check(ctx); err != nil {
			return err // not ours any more: do not send
		}
		return charge(ctx, lease.Fence()) // the resource checks the fence
	}
	_ = pay // it needs servers
}

// Durable markers protect used keys, even if Redis loses every record. The service removes them
// after a retention.
func ExampleWithDurableMarkers() {
	newEngine := func(ctx context.Context, client *zookeeper.Client, store driver.Store) (*idem.Engine, error) {
		return idem.New(client.Locker(zookeeper.WithDurableMarkers()), store)
	}
	_ = newEngine // it needs servers
}
