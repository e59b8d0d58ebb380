package idemtest

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

var (
	_ driver.OfferingLocker = (*FaultyLocker)(nil)
	_ driver.OfferedLease   = (*faultyOfferedLease)(nil)
)

// FaultyLocker is a locker with [Faults]. Its leases have the faults "Lease.Check",
// "Lease.Release", "Lease.ReleaseInBackground" and "Lease.MarkBegun". They are
// [driver.MarkingLease] if the leases of the wrapped locker are. It offers locks if the wrapped locker is
// a [driver.OfferingLocker]. Then its offers have the fault "Offer.Retake".
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
		Faults: newFaults("TryAcquire", "Wait", "Ping", "Lease.Check", "Lease.Release", "Lease.ReleaseInBackground", "Lease.MarkBegun", "Offer", "Offer.Retake"),
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

// LockSpace is [driver.OfferingLocker.LockSpace]. It is nil if the wrapped locker offers no locks.
func (f *FaultyLocker) LockSpace() any {
	if l, ok := f.locker.(driver.OfferingLocker); ok {
		return l.LockSpace()
	}
	return nil
}

// Offer is [driver.OfferingLocker.Offer].
func (f *FaultyLocker) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	l, ok := f.locker.(driver.OfferingLocker)
	if !ok {
		return nil, errTakesNoLocks
	}
	return passing(ctx, f.Faults, "Offer", func(ctx context.Context) (driver.LockOffer, error) {
		o, err := l.Offer(ctx, req)
		return &faultyOffer{LockOffer: o, faults: f.Faults}, err
	})
}

type faultyOffer struct {
	driver.LockOffer
	faults *Faults
}

// Taken is [driver.LockOffer.Taken].
func (o *faultyOffer) Taken(f driver.Fence) (driver.OfferedLease, error) {
	return o.offered(o.LockOffer.Taken(f))
}

// Retake is [driver.LockOffer.Retake]. If it loses its reply or is delivered late, the lock stays with its owner,
// and nobody renews it.
func (o *faultyOffer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	var (
		mu    sync.Mutex
		taken driver.OfferedLease
		over  bool
	)
	err := o.faults.pass(ctx, "Offer.Retake", func(ctx context.Context) error {
		lease, err := o.LockOffer.Retake(ctx)
		if err != nil {
			return err
		}
		mu.Lock()
		defer mu.Unlock()
		if over {
			lease.Returned()
			return nil
		}
		taken = lease
		return nil
	})
	mu.Lock()
	defer mu.Unlock()
	over = true
	if err != nil && taken != nil {
		taken.Returned()
	}
	return o.offered(taken, err)
}

func (o *faultyOffer) offered(l driver.OfferedLease, err error) (driver.OfferedLease, error) {
	if err != nil {
		return nil, err
	}
	return &faultyOfferedLease{&faultyLease{Lease: l, faults: o.faults}, l}, nil
}

// faultyOfferedLease is a faultyLease that a store can give back.
type faultyOfferedLease struct {
	*faultyLease
	lease driver.OfferedLease
}

// Lock is [driver.OfferedLease.Lock].
func (l *faultyOfferedLease) Lock() driver.OfferedLock { return l.lease.Lock() }

// Returned is [driver.OfferedLease.Returned].
func (l *faultyOfferedLease) Returned() { l.lease.Returned() }
