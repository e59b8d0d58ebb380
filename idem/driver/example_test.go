package driver_test

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

// Each holder of a lock has a greater fence than the one before, so a resource can tell who came later.
func ExampleFence_Before() {
	ctx, locker := context.Background(), memorylock.New()
	var earlier driver.Fence
	for range 2 {
		lease, err := driver.Acquire(ctx, locker, driver.LockRequest{KeyID: idem.NewKeyID("m1", "k1"), Nonce: driver.NewNonce()})
		if err != nil {
			fmt.Println(err)
			return
		}
		fmt.Println(earlier.Domain == "" || earlier.Before(lease.Fence()))
		earlier = lease.Fence()
		_ = lease.Release(ctx)
	}
	// Output:
	// true
	// true
}
