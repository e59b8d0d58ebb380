package idemtest

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// LockerHarness tells [RunLocker] how to make Lockers.
type LockerHarness struct {
	// New returns a Locker for one test. The suite takes locks on random key IDs only, so all
	// Lockers may share one service. New arranges the end of the Locker with t.Cleanup. It is
	// required.
	New func(t *testing.T) driver.Locker

	// Second returns another client on the service and in the lock domain of first. It finds
	// the locks of first locked. If it is nil, first plays both clients.
	Second func(t *testing.T, first driver.Locker) driver.Locker

	// Lose ends the lease as an expired session would. Its Done is closed soon after, and the
	// lock becomes free. l is the Locker of the lease and may lose its other leases too. If
	// Lose is nil, the suite skips the tests of loss.
	Lose func(t *testing.T, l driver.Locker, id driver.KeyID, lease driver.Lease)

	// Timeout bounds every wait of the suite. A longer wait is a failure. Many callers of one lock have
	// four times as long. The default is 30 s.
	Timeout time.Duration

	// Rounds is how often each of the 64 goroutines of the mutual exclusion
	// test takes the lock. The default is 6.
	Rounds int
}

// RunLocker runs the conformance suite of [driver.Locker], a subtest for each behaviour, one
// after the other. Run it with the race detector, because in the test of mutual exclusion the
// lock guards plain memory.
func RunLocker(t *testing.T, h LockerHarness) {
	t.Helper()
	if h.New == nil {
		t.Fatal("idemtest: LockerHarness.New is nil")
	}
	if h.Timeout <= 0 {
		h.Timeout = 30 * time.Second
	}
	if h.Rounds <= 0 {
		h.Rounds = 6
	}
	tests := slices.Concat(lockerExclusionTests, lockerLeaseTests, lockerWaitTests, lockerContentionTests, lockerInspectTests, lockerHistoryTests)
	if h.Lose != nil {
		tests = append(tests, lockerLossTests...)
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) { tt.run(newLockerBench(t, h)) })
	}
}

// lockerTest is one behaviour.
type lockerTest struct {
	name string
	run  func(b *lockerBench)
}

// lockerBench is the fixture of a subtest.
type lockerBench struct {
	*testing.T
	h     LockerHarness
	ctx   context.Context // ends with the test
	a, b  driver.Locker   // two clients of one service
	id    driver.KeyID    // never used before
	other driver.KeyID    // never used before; differs from id only in its last bit
}

func newLockerBench(t *testing.T, h LockerHarness) *lockerBench {
	t.Helper()
	a := h.New(t)
	b := a
	if h.Second != nil {
		b = h.Second(t, a)
	}
	n := driver.NewNonce()
	id := idem.NewKeyID("idemtest", idem.Key(n.String()))
	other := id
	other[len(other)-1] ^= 1
	return &lockerBench{T: t, h: h, ctx: t.Context(), a: a, b: b, id: id, other: other}
}

// request returns a request of a new attempt.
func request(id driver.KeyID) driver.LockRequest {
	return driver.LockRequest{KeyID: id, Nonce: driver.NewNonce()}
}

// bounded returns a context with the time-out of the harness.
func (b *lockerBench) bounded() (context.Context, context.CancelFunc) {
	return context.WithTimeout(b.ctx, b.h.Timeout)
}

// take takes a lock. The lock has to be free.
func (b *lockerBench) take(l driver.Locker, id driver.KeyID) driver.Lease {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	lease, err := l.TryAcquire(ctx, request(id))
	if err != nil {
		b.Fatalf("TryAcquire(%s) = %v, want a lease", id, err)
	}
	return lease
}

// takeSoon takes a lock. The lock has to become free.
func (b *lockerBench) takeSoon(l driver.Locker, id driver.KeyID) driver.Lease {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	lease, err := driver.Acquire(ctx, l, request(id))
	if err != nil {
		b.Fatalf("Acquire(%s) = %v, want a lease", id, err)
	}
	return lease
}

// wantLocked tries a lock. Another owner has to hold it.
func (b *lockerBench) wantLocked(l driver.Locker, req driver.LockRequest) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	lease, err := l.TryAcquire(ctx, req)
	if !errors.Is(err, driver.ErrLocked) {
		b.Errorf("TryAcquire(%s) = %v, want %v", req.KeyID, err, driver.ErrLocked)
	}
	if lease != nil {
		b.Errorf("TryAcquire(%s) = lease %v with error %v, want no lease", req.KeyID, lease, err)
	}
}

// release gives a lease back.
func (b *lockerBench) release(lease driver.Lease) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	if err := lease.Release(ctx); err != nil {
		b.Errorf("Release() of %s = %v, want <nil>", lease.Fence(), err)
	}
}

// wantHeld asks the lease itself.
func (b *lockerBench) wantHeld(lease driver.Lease) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	if left, err := lease.Check(ctx); err != nil || left <= 0 {
		b.Errorf("Check() of %s while held = %v, %v, want a time left and <nil>", lease.Fence(), left, err)
	}
	if isClosed(lease.Done()) {
		b.Errorf("Done() of %s while held is closed", lease.Fence())
	}
	if err := lease.Err(); err != nil {
		b.Errorf("Err() of %s while held = %v, want <nil>", lease.Fence(), err)
	}
}

// wantOver asks a released or lost lease.
func (b *lockerBench) wantOver(lease driver.Lease) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	if left, err := lease.Check(ctx); !errors.Is(err, driver.ErrLeaseLost) {
		b.Errorf("Check() of %s when over = %v, %v, want %v", lease.Fence(), left, err, driver.ErrLeaseLost)
	}
	if !isClosed(lease.Done()) {
		b.Errorf("Done() of %s when over is open", lease.Fence())
	}
}

// await waits until a channel is closed.
func (b *lockerBench) await(what string, c <-chan struct{}) {
	b.Helper()
	ctx, cancel := b.bounded()
	defer cancel()
	select {
	case <-c:
	case <-ctx.Done():
		b.Fatalf("%s: nothing after %v", what, b.h.Timeout)
	}
}

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}
