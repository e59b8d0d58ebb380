package memorylock_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
)

// A key has one owner at a time, and each later owner has a greater fence.
func Example() {
	ctx, locker := context.Background(), memorylock.New()
	id := idem.NewKeyID("tenant-1", "order-4711")
	first, err := locker.TryAcquire(ctx, driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	fmt.Println(err)
	_, err = locker.TryAcquire(ctx, driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	fmt.Println(errors.Is(err, driver.ErrLocked))
	fmt.Println(first.Release(ctx))
	second, err := locker.TryAcquire(ctx, driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()})
	fmt.Println(err, second.Fence().Token > first.Fence().Token)
	// Output:
	// <nil>
	// true
	// <nil>
	// <nil> true
}
