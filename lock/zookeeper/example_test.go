package zookeeper_test

import (
	"context"
	"errors"
	"log"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
)

func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()

	servers, chroot, err := zookeeper.ParseConnectString("zk1:2181,zk2:2181,zk3:2181/payments")
	if err != nil {
		log.Fatal(err)
	}
	client, err := zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close(ctx)

	lease, err := client.Locker().TryAcquire(ctx, idem.LockRequest{
		KeyID: idem.NewKeyID("tenant-1", "order-4711"),
		Nonce: idem.NewNonce(),
	})
	switch {
	case errors.Is(err, idem.ErrLocked):
		return // somebody else is at it
	case err != nil:
		log.Fatal(err)
	}
	defer lease.ReleaseBehind()
	if _, err := lease.Check(ctx); err != nil {
		return // not ours any more: do not send
	}
	// Charge the customer, with lease.Fence() for the resource to check.
}
