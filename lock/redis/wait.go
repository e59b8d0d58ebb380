package redislock

import (
	"context"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Pauses between two looks at a lock that callers wait for.
const (
	firstLook = 5 * time.Millisecond
	mostLook  = 250 * time.Millisecond
)

// lookTimeout bounds one look. It is longer than that of a heartbeat, because all waiters
// get an error when it fails.
const lookTimeout = 2 * time.Second

// waits are the watches of this process.
type waits struct {
	mu      sync.Mutex
	watches map[idem.KeyID]*watch
}

// watch looks at one lock for all callers of this process that wait for it.
type watch struct {
	waiters int           // guarded by waits.mu
	kick    chan struct{} // holds a value if the watch has to look at once
	over    chan struct{} // closed after err is set
	err     error
	stop    context.CancelFunc
}

// Wait implements [idem.Locker]. Redis does not call back, so Wait looks at the lock: after
// 5 ms, then less and less often down to every 250 ms, at its expiry if that is earlier,
// and at once if this process gave the lock back. All waiters of a process share the looks.
func (l *Locker) Wait(ctx context.Context, id idem.KeyID) error {
	if ctx.Err() != nil {
		return ctx.Err()
	}
	w := l.waits.join(l.ctx, id, func(ctx context.Context, w *watch) bool {
		return l.spawn(func() { l.waits.look(ctx, id, w, l.remaining) })
	})
	if w == nil {
		return unavailable("wait", errClosed)
	}
	select {
	case <-w.over:
		return w.err
	case <-ctx.Done():
		l.waits.leave(id, w)
		return ctx.Err()
	}
}

// remaining is how long a lock exists unless it is renewed. It is 0 if there is no lock.
func (l *Locker) remaining(ctx context.Context, id idem.KeyID) (time.Duration, error) {
	if err := l.askable(ctx, id); err != nil {
		return 0, err
	}
	ctx, cancel := context.WithTimeout(ctx, lookTimeout)
	defer cancel()
	return l.keeper.remaining(ctx, id)
}

// join adds a waiter to the key's watch, and starts the watch for the first one. It returns
// nil if the watch cannot start.
func (ws *waits) join(ctx context.Context, id idem.KeyID, start func(context.Context, *watch) bool) *watch {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.watches[id]; w != nil {
		w.waiters++
		return w
	}
	w := &watch{waiters: 1, kick: make(chan struct{}, 1), over: make(chan struct{})}
	ctx, w.stop = context.WithCancel(ctx)
	if !start(ctx, w) {
		w.stop()
		return nil
	}
	ws.watches[id] = w
	return w
}

// leave takes a waiter away, and ends the watch with the last one.
func (ws *waits) leave(id idem.KeyID, w *watch) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w.waiters--; w.waiters == 0 {
		w.stop()
		ws.remove(id, w)
	}
}

// remove forgets a watch. The caller holds mu.
func (ws *waits) remove(id idem.KeyID, w *watch) {
	if ws.watches[id] == w {
		delete(ws.watches, id)
	}
}

// wake makes the watch of a key look at once.
func (ws *waits) wake(id idem.KeyID) {
	ws.mu.Lock()
	defer ws.mu.Unlock()
	if w := ws.watches[id]; w != nil {
		select {
		case w.kick <- struct{}{}:
		default:
		}
	}
}

// look asks until the lock is free or Redis cannot be asked, and tells all waiters.
func (ws *waits) look(ctx context.Context, id idem.KeyID, w *watch, remaining func(context.Context, idem.KeyID) (time.Duration, error)) {
	defer w.stop()
	for pause := firstLook; ; pause = min(2*pause, mostLook) {
		left, err := remaining(ctx, id)
		if err != nil || left == 0 {
			ws.mu.Lock()
			defer ws.mu.Unlock()
			ws.remove(id, w)
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
		case <-ctx.Done(): // the next look notices
		}
		timer.Stop()
	}
}
