package redislock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Pauses between two tries to remove a lock.
const (
	firstPause = 10 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// removeLater removes an owner's lock in the background. It tries until Redis acknowledges,
// or until the lock must have expired. With onItsWay a request that takes the lock may
// still arrive: removeLater then goes on until it finds the lock, less and less often, for
// one time to live. It calls settled once, at the first acknowledgement or when it gives
// up. Close waits for that call.
func (l *Locker) removeLater(id idem.KeyID, owner string, onItsWay bool, settled func(error)) {
	l.background.Add()
	done := false
	settle := func(err error) {
		if !done {
			done = true
			settled(err)
			l.background.Done()
		}
	}
	if !l.spawn(func() { l.keepRemoving(id, owner, onItsWay, settle) }) {
		settle(unavailable("release: left to time out", errClosed))
	}
}

func (l *Locker) keepRemoving(id idem.KeyID, owner string, onItsWay bool, settle func(error)) {
	giveUp := time.Now().Add(expiryOf(l.ttl))
	for pause := firstPause; ; pause *= 2 {
		ctx, cancel := context.WithTimeout(l.ctx, patienceOf(l.ttl))
		found, err := l.keeper.remove(ctx, id, owner)
		cancel()
		if err == nil {
			settle(nil)
			l.waits.wake(id)
			if found || !onItsWay {
				return
			}
		} else {
			pause = min(pause, mostPause)
		}
		if time.Now().Add(pause).After(giveUp) || !sleep(l.ctx, jitter(pause)) {
			settle(unavailable("release: left to time out", err))
			return
		}
	}
}

// jitter is d give or take a half, so that callers that fail together do not try again
// together.
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
