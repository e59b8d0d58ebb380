package leasing

import (
	"context"
	"sync/atomic"
	"time"
)

// Pauses between two tries to remove a lock.
const (
	firstPause = 10 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// removal removes an owner's lock. It tries until the server acknowledges, or until the lock
// must have expired. With onItsWay the request to take the lock may still arrive. Then the
// removal goes on until it finds the lock, less and less often, for one time to live.
type removal struct {
	l        *Locker
	lock     Lock
	onItsWay bool
	settled  func(error)           // called once, at the first acknowledgement or at the end; then nil
	failed   atomic.Pointer[error] // why the last try failed
}

// newRemoval returns a removal. Close waits until it is settled. The caller tries or
// starts it.
func (l *Locker) newRemoval(lock Lock, taken bool, settled func(error)) *removal {
	l.background.Add()
	return &removal{l: l, lock: lock, onItsWay: !taken, settled: settled}
}

// settle calls settled, unless it was called before.
func (r *removal) settle(err error) {
	if settled := r.settled; settled != nil {
		r.settled = nil
		settled(err)
		r.l.background.Done()
	}
}

// try asks the server once. It returns true if there is nothing left to do.
func (r *removal) try(ctx context.Context) (over bool, err error) {
	ctx, cancel := within(ctx, PatienceOf(r.l.ttl))
	defer cancel()
	found, err := r.l.service.Remove(ctx, r.lock, !r.onItsWay)
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
		r.settle(r.l.Unavailable("release: left to time out", ErrClosed))
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
			r.settle(r.l.Unavailable("release: left to time out", err))
			return
		}
	}
}
