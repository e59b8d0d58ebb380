package redislock

import (
	"context"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Pauses between two tries to remove a lock. An undo doubles its pause without
// a limit but the time to live.
const (
	firstPause = 10 * time.Millisecond
	mostPause  = 250 * time.Millisecond
)

// Release implements [idem.Lease].
func (le *lease) Release(ctx context.Context) error {
	le.ReleaseBehind()
	select {
	case <-le.gone:
		return le.goneErr
	case <-ctx.Done():
	}
	select {
	case <-le.gone:
		return le.goneErr
	default:
		return unavailable("release goes on in the background", context.Cause(ctx))
	}
}

// ReleaseBehind implements [idem.Lease]. Close waits for it.
func (le *lease) ReleaseBehind() {
	le.finish(released, nil)
	le.releasing.Do(func() {
		le.l.background.Add()
		if !le.l.spawn(le.giveBack) {
			defer le.l.background.Done()
			le.goneErr = unavailable("release: left to time out", errClosed)
			close(le.gone)
		}
	})
}

// giveBack removes the lock of a lease that has ended. It is repeated until it
// is acknowledged, or the lock must have expired.
func (le *lease) giveBack() {
	l := le.l
	defer l.background.Done()
	defer close(le.gone)
	pause, giveUp := firstPause, time.Now().Add(expiryOf(l.ttl))
	for {
		_, err := l.tryRemove(le.id, le.owner)
		if err == nil {
			l.wake(le.id)
			return
		}
		if time.Now().After(giveUp) || !l.sleep(pause) {
			le.goneErr = unavailable("release: left to time out", err)
			return
		}
		pause = min(2*pause, mostPause)
	}
}

// undo removes in the background what a failed attempt to take a lock may have
// made. The request may still be on its way, so nothing found is looked for
// again, less and less often, for one time to live.
func (l *Locker) undo(id idem.KeyID, owner string) {
	l.background.Add()
	if !l.spawn(func() { l.keepUndoing(id, owner) }) {
		l.background.Done()
	}
}

func (l *Locker) keepUndoing(id idem.KeyID, owner string) {
	acknowledged := false
	defer func() {
		if !acknowledged {
			l.background.Done()
		}
	}()
	pause, giveUp := firstPause, time.Now().Add(expiryOf(l.ttl))
	for {
		found, err := l.tryRemove(id, owner)
		if err == nil && !acknowledged { // Close does not wait for the rest
			acknowledged = true
			l.background.Done()
		}
		if found {
			l.wake(id)
			return
		}
		if err != nil {
			pause = min(pause, mostPause)
		}
		if time.Now().Add(pause).After(giveUp) || !l.sleep(pause) {
			return
		}
		pause *= 2
	}
}

// tryRemove removes a lock once, unless its server is known not to answer.
func (l *Locker) tryRemove(id idem.KeyID, owner string) (bool, error) {
	if !l.health.admit(shardOf(id)) {
		return false, errNoAnswer
	}
	ctx, cancel := context.WithTimeout(l.ctx, patienceOf(l.ttl))
	defer cancel()
	sent := time.Now()
	found, err := l.remove(ctx, id, owner)
	l.health.note(shardOf(id), sent, err)
	return found, err
}

// jitter is d give or take a half, so that those who fail together do not try
// again together.
func jitter(d time.Duration) time.Duration {
	return d/2 + rand.N(d) //nolint:gosec // spreads retries, no secret
}

// sleep waits for d, more or less. It is false when the locker ends first.
func (l *Locker) sleep(d time.Duration) bool {
	t := time.NewTimer(jitter(d))
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-l.ctx.Done():
		return false
	}
}
