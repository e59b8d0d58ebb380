// Package locktest has what tests of the locks with a time to live share.
package locktest

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Patience bounds everything that tests wait for.
const Patience = 30 * time.Second

// Request is that of a new attempt on a key never used before.
func Request() driver.LockRequest {
	n := driver.NewNonce()
	return driver.LockRequest{KeyID: idem.NewKeyID("test", idem.Key(n.String())), Nonce: n}
}

// Again is another attempt's on the same key.
func Again(req driver.LockRequest) driver.LockRequest {
	return driver.LockRequest{KeyID: req.KeyID, Nonce: driver.NewNonce()}
}

// Take takes a lock that is free.
func Take(tb testing.TB, l driver.Locker, req driver.LockRequest) driver.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	lease, err := l.TryAcquire(ctx, req)
	if err != nil {
		tb.Fatalf("TryAcquire(%s) = %v, want a lease", req.KeyID, err)
	}
	return lease
}

// TakeSoon takes a lock once it is free.
func TakeSoon(tb testing.TB, l driver.Locker, req driver.LockRequest) driver.Lease {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	lease, err := driver.Acquire(ctx, l, req)
	if err != nil {
		tb.Fatalf("Acquire(%s) = %v, want a lease", req.KeyID, err)
	}
	return lease
}

// Release gives a lock back.
func Release(tb testing.TB, lease driver.Lease) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), Patience)
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		tb.Errorf("Release() of %s = %v, want <nil>", lease.Fence(), err)
	}
}

// WantLocked tries a lock that another owner has to hold.
func WantLocked(tb testing.TB, l driver.Locker, req driver.LockRequest) {
	tb.Helper()
	if lease, err := l.TryAcquire(tb.Context(), req); !errors.Is(err, driver.ErrLocked) {
		tb.Errorf("TryAcquire(%s) = %v, %v, want %v", req.KeyID, lease, err, driver.ErrLocked)
	}
}

// Await waits for the end of a channel.
func Await(tb testing.TB, what string, c <-chan struct{}) {
	tb.Helper()
	select {
	case <-c:
	case <-time.After(Patience):
		tb.Fatalf("%s: nothing after %v", what, Patience)
	}
}

// WantLost waits for the loss of a lease.
func WantLost(tb testing.TB, lease driver.Lease) {
	tb.Helper()
	Await(tb, "Done() of a lost lease", lease.Done())
	if err := lease.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		tb.Errorf("Err() = %v, want %v", err, driver.ErrLeaseLost)
	}
	if left, err := lease.Check(tb.Context()); !errors.Is(err, driver.ErrLeaseLost) {
		tb.Errorf("Check() = %v, %v, want %v", left, err, driver.ErrLeaseLost)
	}
}
