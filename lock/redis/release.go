package redislock

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Pauses between two tries to remove a lock.
const (
	firstPause = 10 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// removeLater removes an owner's lock in the background. It tries until Redis acknowledges,
// or until the lock must have expired. With onItsWay the request to take the lock may still
// arrive. Then removeLater goes on until it finds the lock, less and less often, for one
// time to live. It calls settled once, at the first acknowledgement or when it gives up.
// Close waits for this call.
func (l *Locker) removeLater(id idem.KeyID, owner string, onItsWay bool, settled func(error)) {
	l.background.Add()
	var once sync.Once
	settle := func(err error) {
		once.Do(func() {
			settled(err)
			l.background.Done()
		})
	}
	running := l.spawn(func() {
		giveUp := time.Now().Add(l.ttl + l.ttl/4) // the lock has surely expired by then
		for pause := firstPause; ; pause *= 2 {
			ctx, cancel := context.WithTimeout(l.ctx, patienceOf(l.ttl))
			found, err := l.keeper.remove(ctx, id, owner)
			cancel()
			if err != nil {
				pause = min(pause, mostPause)
			} else if settle(nil); found || !onItsWay {
				return
			}
			if time.Now().Add(pause).After(giveUp) || !sleep(l.ctx, jitter(pause)) {
				settle(unavailable("release: left to time out", err))
				return
			}
		}
	})
	if !running {
		settle(unavailable("release: left to time out", errClosed))
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
