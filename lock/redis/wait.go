package redislock

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Pauses between two looks at a lock that somebody waits for.
const (
	firstLook = 5 * time.Millisecond
	mostLook  = 250 * time.Millisecond
)

// lookTimeout bounds one look. It is not that of a heartbeat, which has to
// hurry: those who wait lose their place when it fails.
const lookTimeout = 2 * time.Second

// watch is the one look-out of this process for a lock, shared by all who wait
// for it.
type watch struct {
	waiters int           // guarded by Locker.mu
	kick    chan struct{} // holds a value when it has to be looked at once
	over    chan struct{} // closed when err is set
	err     error
	stop    context.CancelFunc
}

// Wait implements [idem.Locker]. Redis does not call back: the lock is looked at
// every 5 ms, then less and less often up to every 250 ms, earlier where it
// expires before that, and at once where this process gave it back. However
// many wait in a process, one looks.
func (l *Locker) Wait(ctx context.Context, id idem.KeyID) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w, err := l.join(id)
	if err != nil {
		return unavailable("wait", err)
	}
	select {
	case <-w.over:
		return w.err
	case <-ctx.Done():
		l.leave(id, w)
		return ctx.Err()
	}
}

// join adds a waiter to the key's watch, and starts one where there is none.
func (l *Locker) join(id idem.KeyID) (*watch, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closing {
		return nil, errClosed
	}
	if w := l.watches[id]; w != nil {
		w.waiters++
		return w, nil
	}
	w := &watch{waiters: 1, kick: make(chan struct{}, 1), over: make(chan struct{})}
	var ctx context.Context
	ctx, w.stop = context.WithCancel(l.ctx)
	l.watches[id] = w
	l.wg.Go(func() { l.look(ctx, id, w) })
	return w, nil
}

// leave takes a waiter away, and ends the watch with the last.
func (l *Locker) leave(id idem.KeyID, w *watch) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w.waiters--; w.waiters == 0 {
		w.stop()
		if l.watches[id] == w {
			delete(l.watches, id)
		}
	}
}

// wake has the watch of a key look at once: this process has just given the
// lock back.
func (l *Locker) wake(id idem.KeyID) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if w := l.watches[id]; w != nil {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

// look asks until the lock is free or Redis cannot be asked, and tells all who
// wait.
func (l *Locker) look(ctx context.Context, id idem.KeyID, w *watch) {
	defer w.stop()
	pause := firstLook
	for {
		left, err := l.remaining(ctx, id)
		if err != nil || left == 0 {
			l.mu.Lock()
			defer l.mu.Unlock()
			if l.watches[id] == w {
				delete(l.watches, id)
			}
			if err != nil {
				w.err = unavailable("wait", err)
			}
			close(w.over)
			return
		}
		timer := time.NewTimer(min(left, jitter(pause)))
		select {
		case <-timer.C:
		case <-w.kick:
		case <-ctx.Done(): // found by the next look
		}
		timer.Stop()
		pause = min(2*pause, mostLook)
	}
}

// remaining is for how long a lock exists unless it is renewed; 0 where it does
// not.
func (l *Locker) remaining(ctx context.Context, id idem.KeyID) (time.Duration, error) {
	if err := l.askable(shardOf(id)); err != nil {
		return 0, err
	}
	if ctx.Err() != nil {
		return 0, ctx.Err()
	}
	call, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	sent := time.Now()
	left, err := l.client.PTTL(call, l.keys.lock(id)).Result()
	l.health.note(shardOf(id), sent, err)
	switch {
	case err != nil:
		return 0, err
	case left == -2: // there is no such key
		return 0, nil
	case left == -1: // somebody has made it stay
		return mostLook, nil
	case left < time.Millisecond: // about to expire
		return time.Millisecond, nil
	}
	return left, nil
}
