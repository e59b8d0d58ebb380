package redislock

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/redislocks"
	"github.com/idemkeeper/idemkeeper/internal/redisserver"
)

var (
	_ driver.OfferingLocker = (*Locker)(nil)
	_ driver.LockOffer      = (*offer)(nil)
	_ driver.OfferedLease   = (*lease)(nil)
)

// LockSpace implements [driver.OfferingLocker]. A store on the same client and with the same prefix can take the locks.
func (l *Locker) LockSpace() any { return redislocks.Space(l.keeper.client, l.prefix) }

// Offer implements [driver.OfferingLocker].
func (l *Locker) Offer(ctx context.Context, req driver.LockRequest) (driver.LockOffer, error) {
	if err := l.askable(ctx, req.KeyID); err != nil {
		return nil, unavailable("offer", err)
	}
	return l.newOffer(req), nil
}

func (l *Locker) newOffer(req driver.LockRequest) *offer {
	return &offer{l: l, id: req.KeyID, made: l.now(), at: time.Now(),
		lock: driver.OfferedLock{Owner: driver.NewNonce().String(), Nonce: req.Nonce, Note: thisProcess, TTL: l.ttl}}
}

// offer is a lock that is not taken yet.
type offer struct {
	l    *Locker
	id   driver.KeyID
	lock driver.OfferedLock
	made leaseclock.Instant // trust counts from here
	at   time.Time
}

// Lock implements [driver.LockOffer].
func (o *offer) Lock() driver.OfferedLock { return o.lock }

// Taken implements [driver.LockOffer].
func (o *offer) Taken(f driver.Fence) (driver.OfferedLease, error) {
	o.NotTaken(nil)
	le, err := o.granted(f)
	if err != nil { // not le, which is no nil interface
		return nil, err
	}
	return le, nil
}

// granted returns the lease of the lock that Redis has given.
func (o *offer) granted(f driver.Fence) (*lease, error) {
	le := &lease{
		l: o.l, id: o.id, lock: o.lock, fence: f, renewed: o.made,
		done: make(chan struct{}), gone: make(chan struct{}),
	}
	if err := o.l.grant(le); err != nil {
		return nil, unavailable("acquire", err)
	}
	return le, nil
}

// NotTaken implements [driver.LockOffer].
func (o *offer) NotTaken(err error) {
	o.l.keeper.health.note(context.Background(), redisserver.ShardOf(o.id), o.at, err)
}

// Retake implements [driver.LockOffer].
func (o *offer) Retake(ctx context.Context) (driver.OfferedLease, error) {
	if err := o.l.askable(ctx, o.id); err != nil {
		return nil, unavailable("acquire", err)
	}
	o.made, o.at = o.l.now(), time.Now()
	le, err := o.take(ctx)
	if err != nil {
		return nil, err
	}
	return le, nil
}

// take asks Redis for the lock. After ErrUnavailable Redis may have applied the request, or may apply it yet.
func (o *offer) take(ctx context.Context) (*lease, error) {
	call, cancel := within(ctx, trustOf(o.l.ttl)) // a later answer would be useless
	defer cancel()
	fence, taken, err := o.l.keeper.acquire(call, o.id, o.lock)
	switch {
	case err == nil && !taken:
		return nil, fmt.Errorf("lock/redis: acquire: %w", driver.ErrLocked)
	case err == nil:
		return o.granted(fence)
	}
	return nil, unavailable("acquire", err)
}

// remove removes the lock in the background, now or when the request for it arrives.
func (o *offer) remove() { o.l.newRemoval(o.id, o.lock.Owner, true, func(error) {}).start() }

// Lock implements [driver.OfferedLease].
func (le *lease) Lock() driver.OfferedLock { return le.lock }

// Returned implements [driver.OfferedLease].
func (le *lease) Returned() {
	le.finish(errReleased)
	if !le.releasing.Swap(true) {
		close(le.gone)
	}
}
