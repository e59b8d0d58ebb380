package leasing

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// Offer is a lock that is not taken yet. Another call than that of the service may take it, see [driver.LockOffer].
// It is for one goroutine.
type Offer struct {
	l    *Locker
	lock Lock
	made leaseclock.Instant // trust counts from here
}

// Offer returns a lock to take at once. It sends nothing. The error wraps driver.ErrUnavailable.
func (l *Locker) Offer(ctx context.Context, req driver.LockRequest) (*Offer, error) {
	if err := l.askable(ctx, req.KeyID); err != nil {
		return nil, l.Unavailable("acquire", err)
	}
	return &Offer{l, Lock{req.KeyID, driver.NewNonce(), req.Nonce}, l.now()}, nil
}

// Lock is what has to be taken.
func (o *Offer) Lock() Lock { return o.lock }

// Taken returns the lease of the lock, which was taken since the offer was made. If the lock came too late to be
// trusted, the error wraps driver.ErrUnavailable, and the lock stays as it is.
func (o *Offer) Taken(f driver.Fence) (*Lease, error) {
	le := &Lease{l: o.l, lock: o.lock, fence: f, renewed: o.made, done: make(chan struct{}), gone: make(chan struct{})}
	if err := o.l.grant(le); err != nil {
		return nil, o.l.Unavailable("acquire", err)
	}
	return le, nil
}

// Retake is that of [driver.LockOffer]. It needs a service whose Acquire gives a lock that its owner has already the full time
// to live again, under the same fence.
func (o *Offer) Retake(ctx context.Context) (*Lease, error) {
	if err := o.l.askable(ctx, o.lock.ID); err != nil {
		return nil, o.l.Unavailable("acquire", err)
	}
	o.made = o.l.now()
	return o.take(ctx)
}

// take asks the server for the lock. After driver.ErrUnavailable the server may have applied the request, or may apply it yet.
func (o *Offer) take(ctx context.Context) (*Lease, error) {
	call, cancel := within(ctx, TrustOf(o.l.ttl)) // a later answer would be useless
	defer cancel()
	fence, taken, err := o.l.service.Acquire(call, o.lock)
	switch {
	case err != nil:
		return nil, o.l.Unavailable("acquire", err)
	case !taken:
		return nil, fmt.Errorf("%s: acquire: %w", o.l.name, driver.ErrLocked)
	}
	return o.Taken(fence)
}

// Offered returns what makes a [driver.OfferedLease] of an answer of Taken or Retake. lock is what a store is told of it.
func Offered(lock driver.OfferedLock) func(*Lease, error) (driver.OfferedLease, error) {
	return func(le *Lease, err error) (driver.OfferedLease, error) {
		if err != nil {
			return nil, err
		}
		return offeredLease{le, lock}, nil
	}
}

// offeredLease is a lease whose lock a store can give back.
type offeredLease struct {
	*Lease
	lock driver.OfferedLock
}

// Lock implements [driver.OfferedLease].
func (le offeredLease) Lock() driver.OfferedLock { return le.lock }

// Returned ends a lease whose lock was given back by another call than that of the service.
func (le *Lease) Returned() {
	le.finish(le.l.released)
	if !le.releasing.Swap(true) {
		close(le.gone)
	}
}
