package idemtest

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.Locker = (*FaultyLocker)(nil)

// FaultyLocker is a locker with [Faults]. Its leases have the faults "Lease.Check",
// "Lease.Release", "Lease.ReleaseInBackground" and "Lease.MarkBegun". They are
// [idem.MarkingLease] if the leases of the wrapped locker are.
//
// After a TryAcquire that loses its reply or is delivered late, the wrapper releases the lock
// in the background, as the contract of [idem.Locker] demands.
type FaultyLocker struct {
	*Faults
	locker idem.Locker
}

// NewFaultyLocker wraps a locker. Without faults it only counts.
func NewFaultyLocker(l idem.Locker) *FaultyLocker {
	return &FaultyLocker{
		Faults: newFaults("TryAcquire", "Wait", "Ping", "Lease.Check", "Lease.Release", "Lease.ReleaseInBackground", "Lease.MarkBegun"),
		locker: l,
	}
}

// Locker returns the locker behind the faults.
func (f *FaultyLocker) Locker() idem.Locker { return f.locker }

// TryAcquire is [idem.Locker.TryAcquire].
func (f *FaultyLocker) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	var (
		mu    sync.Mutex
		taken idem.Lease
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
		if marking, ok := taken.(idem.MarkingLease); ok {
			return &faultyMarkingLease{faultyLease: lease, marking: marking}, nil
		}
		return lease, nil
	}
	if taken != nil {
		taken.ReleaseInBackground()
	}
	return nil, err
}

// Wait is [idem.Locker.Wait].
func (f *FaultyLocker) Wait(ctx context.Context, id idem.KeyID) error {
	return f.pass(ctx, "Wait", func(ctx context.Context) error { return f.locker.Wait(ctx, id) })
}

// Ping is [idem.Locker.Ping].
func (f *FaultyLocker) Ping(ctx context.Context) error { return f.pass(ctx, "Ping", f.locker.Ping) }

// Visibility is [idem.Locker.Visibility].
func (f *FaultyLocker) Visibility() idem.Visibility { return f.locker.Visibility() }

type faultyLease struct {
	idem.Lease
	faults *Faults
}

// Check is [idem.Lease.Check].
func (l *faultyLease) Check(ctx context.Context) (time.Duration, error) {
	return passing(ctx, l.faults, "Lease.Check", l.Lease.Check)
}

// Release is [idem.Lease.Release].
func (l *faultyLease) Release(ctx context.Context) error {
	return l.faults.pass(ctx, "Lease.Release", l.Lease.Release)
}

// ReleaseInBackground is [idem.Lease.ReleaseInBackground]. It has no answer to lose. A call
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
	marking idem.MarkingLease
}

// Marker is [idem.MarkingLease.Marker].
func (l *faultyMarkingLease) Marker() *idem.Marker { return l.marking.Marker() }

// LeavesMarkers is [idem.MarkingLease.LeavesMarkers].
func (l *faultyMarkingLease) LeavesMarkers() bool { return l.marking.LeavesMarkers() }

// MarkOnRelease is [idem.MarkingLease.MarkOnRelease].
func (l *faultyMarkingLease) MarkOnRelease(m *idem.Marker) { l.marking.MarkOnRelease(m) }

// MarkBegun is [idem.MarkingLease.MarkBegun].
func (l *faultyMarkingLease) MarkBegun(ctx context.Context, m idem.Marker) error {
	return l.faults.pass(ctx, "Lease.MarkBegun", func(ctx context.Context) error { return l.marking.MarkBegun(ctx, m) })
}
