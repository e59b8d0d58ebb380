package redislock

import (
	"context"
	"math/rand/v2"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Pauses between two tries to remove a lock.
const (
	firstPause = 10 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// removal removes an owner's lock. It tries until Redis acknowledges, or until the lock
// must have expired. With onItsWay the request to take the lock may still arrive. Then the
// removal goes on until it finds the lock, less and less often, for one time to live.
type removal struct {
	l        *Locker
	id       driver.KeyID
	owner    string
	onItsWay bool
	settled  func(error)           // called once, at the first acknowledgement or at the end; then nil
	failed   atomic.Pointer[error] // why the last try failed
}

// newRemoval returns a removal. Close waits until it is settled. The caller tries or
// starts it.
func (l *Locker) newRemoval(id driver.KeyID, owner string, onItsWay bool, settled func(error)) *removal {
	l.background.Add()
	return &removal{l: l, id: id, owner: owner, onItsWay: onItsWay, settled: settled}
}

// settle calls settled, unless it was called before.
func (r *removal) settle(err error) {
	if settled := r.settled; settled != nil {
		r.settled = nil
		settled(err)
		r.l.background.Done()
	}
}

// try asks Redis once. It returns true if there is nothing left to do.
func (r *removal) try(ctx context.Context) (over bool, err error) {
	ctx, cancel := within(ctx, patienceOf(r.l.ttl))
	defer cancel()
	found, err := r.l.keeper.remove(ctx, r.id, r.owner)
	if err != nil {
		r.failed.Store(&err)
		return false, err
	}
	r.settle(nil)
	return found || !r.onItsWay, nil
}

// tryHere is the first try, on the caller's goroutine. It saves the switch to another one.
// It returns false if the removal has to go on in the background.
func (r *removal) tryHere(ctx context.Context) bool {
	if ctx.Err() != nil || !r.l.workers.enter() {
		return false
	}
	defer r.l.workers.leave()
	over, _ := r.try(ctx)
	return over
}

// start lets the removal go on in the background.
func (r *removal) start() {
	if !r.l.workers.spawn(r.run) {
		r.settle(unavailable("release: left to time out", errClosed))
	}
}

// run tries until the removal is over.
func (r *removal) run() {
	giveUp := time.Now().Add(r.l.ttl + r.l.ttl/4) // the lock has surely expired by then
	for pause := firstPause; ; pause *= 2 {
		over, err := r.try(r.l.workers.ctx)
		if over {
			return
		}
		if err != nil {
			pause = min(pause, mostPause)
		}
		if time.Now().Add(pause).After(giveUp) || !sleep(r.l.workers.ctx, jitter(pause)) {
			r.settle(unavailable("release: left to time out", err))
			return
		}
	}
}

// jitter is d give or take a half. It keeps callers from trying again together after they
// have failed together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d) //nolint:gosec // spreads retries, no secret
}

// sleep waits for d. It returns false if ctx ends first.
func sleep(ctx context.Context, d time.Duration) bool {
	select {
	case <-time.After(d):
		return true
	case <-ctx.Done():
		return false
	}
}
