package idemtest

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var _ driver.Locker = (*FaultyLocker)(nil)

// FaultyLocker is a locker with [Faults]. Its leases have the faults "Lease.Check",
// "Lease.Release", "Lease.ReleaseInBackground" and "Lease.MarkBegun". They are
// [driver.MarkingLease] if the leases of the wrapped locker are.
//
// After a TryAcquire that loses its reply or is delivered late, the wrapper releases the lock
// in the background, as the contract of [driver.Locker] demands.
type FaultyLocker struct {
	*Faults
	locker driver.Locker
}

// NewFaultyLocker wraps a locker. Without faults it only counts.
func NewFaultyLocker(l driver.Locker) *FaultyLocker {
	return &FaultyLocker{
		Faults: newFaults("TryAcquire", "Wait", "Ping", "Lease.Check", "Lease.Release", "Lease.ReleaseInBackground", "Lease.MarkBegun"),
		locker: l,
	}
}

// Locker returns the locker behind the faults.
func (f *FaultyLocker) Locker() driver.Locker { return f.locker }

// TryAcquire is [driver.Locker.TryAcquire].
func (f *FaultyLocker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	var (
		mu    sync.Mutex
		taken driver.Lease
		over  bool // the caller has got its answer
	)
	err := f.pass(ctx, "TryAcquire", func(ctx context.Context) error {
		lease, err := f.locker.TryAcquire(ctx, req)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if over {
			lease.ReleaseInBackground()
			return nil
		}
		taken = lease
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	over = true
	if err == nil {
		lease := &faultyLease{Lease: taken, faults: f.Faults}
		if marking, ok := taken.(driver.MarkingLease); ok {
			return &faultyMarkingLease{faultyLease: lease, marking: marking}, nil
		}
		return lease, nil
	}
	if taken != nil {
		taken.ReleaseInBackground()
	}
	return nil, err
}

// Wait is [driver.Locker.Wait].
func (f *FaultyLocker) Wait(ctx context.Context, id driver.KeyID) error {
	return f.pass(ctx, "Wait", func(ctx context.Context) error { return f.locker.Wait(ctx, id) })
}

// Ping is [driver.Locker.Ping].
func (f *FaultyLocker) Ping(ctx context.Context) error { return f.pass(ctx, "Ping", f.locker.Ping) }

// Visibility is [driver.Locker.Visibility].
func (f *FaultyLocker) Visibility() driver.Visibility { return f.locker.Visibility() }

type faultyLease struct {
	driver.Lease
	faults *Faults
}

// Check is [driver.Lease.Check].
func (l *faultyLease) Check(ctx context.Context) (time.Duration, error) {
	return passing(ctx, l.faults, "Lease.Check", l.Lease.Check)
}

// Release is [driver.Lease.Release].
func (l *faultyLease) Release(ctx context.Context) error {
	return l.faults.pass(ctx, "Lease.Release", l.Lease.Release)
}

// ReleaseInBackground is [driver.Lease.ReleaseInBackground]. It has no answer to lose. A call
// that fails before is never made, and a slow one holds up its caller.
func (l *faultyLease) ReleaseInBackground() {
	_ = l.faults.pass(context.Background(), "Lease.ReleaseInBackground", func(context.Context) error {
		l.Lease.ReleaseInBackground()
		return nil
	})
}

// faultyMarkingLease is a faultyLease of a locker that keeps markers.
type faultyMarkingLease struct {
	*faultyLease
	marking driver.MarkingLease
}

// Marker is [driver.MarkingLease.Marker].
func (l *faultyMarkingLease) Marker() *driver.Marker { return l.marking.Marker() }

// LeavesMarkers is [driver.MarkingLease.LeavesMarkers].
func (l *faultyMarkingLease) LeavesMarkers() bool { return l.marking.LeavesMarkers() }

// MarkOnRelease is [driver.MarkingLease.MarkOnRelease].
func (l *faultyMarkingLease) MarkOnRelease(m *driver.Marker) { l.marking.MarkOnRelease(m) }

// MarkBegun is [driver.MarkingLease.MarkBegun].
func (l *faultyMarkingLease) MarkBegun(ctx context.Context, m driver.Marker) error {
	return l.faults.pass(ctx, "Lease.MarkBegun", func(ctx context.Context) error { return l.marking.MarkBegun(ctx, m) })
}
