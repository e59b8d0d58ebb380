package redislock

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

var _ idem.Lease = (*lease)(nil)

// phase is how far a lease has come.
type phase uint8

const (
	held phase = iota
	released
	lost
)

// lease is a lock held in Redis. It leaves phase held once.
type lease struct {
	l     *Locker
	id    idem.KeyID
	owner string // of the lock; each lease has its own
	fence idem.Fence
	done  chan struct{} // closed when the lease leaves phase held

	mu       sync.Mutex
	phase    phase
	err      error
	renewed  leaseclock.Instant // just before the last acknowledged renewal was sent
	deadline leaseclock.Instant // end of trust
	timer    *time.Timer

	releasing sync.Once
	gone      chan struct{} // closed when the lock is gone, or the release is given up
	goneErr   error         // set before gone closes
}

func newLease(l *Locker, id idem.KeyID, owner string, fence idem.Fence, sent leaseclock.Instant) *lease {
	return &lease{
		l: l, id: id, owner: owner, fence: fence, done: make(chan struct{}), gone: make(chan struct{}),
		renewed: sent, deadline: sent.Add(trustOf(l.ttl)),
	}
}

// start starts the timer. It returns false if the time is over already.
func (le *lease) start() bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	left := le.deadline.Sub(le.l.now())
	if left <= 0 {
		return false
	}
	// The timer only closes Done. Err and Check read the clock. The timer stands still in
	// a suspended machine, so the heartbeat looks at the clock too.
	le.timer = time.AfterFunc(left, func() { _ = le.over() })
	return true
}

// Fence implements [idem.Lease].
func (le *lease) Fence() idem.Fence { return le.fence }

// Done implements [idem.Lease].
func (le *lease) Done() <-chan struct{} { return le.done }

// Err implements [idem.Lease]. It reads the lease clock, so it tells of a loss before Done
// does if the machine was suspended.
func (le *lease) Err() error {
	_ = le.over()
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.err
}

// finish ends the lease. It returns false if the lease has ended before. A lost lease
// stays lost.
func (le *lease) finish(p phase, err error) bool {
	le.mu.Lock()
	if le.phase != held {
		le.mu.Unlock()
		return false
	}
	le.phase, le.err = p, err
	le.timer.Stop()
	close(le.done)
	le.mu.Unlock()
	le.l.drop(le)
	return true
}

// lose ends the lease against its holder's will, and logs it.
func (le *lease) lose(why string) {
	if le.finish(lost, fmt.Errorf("lock/redis: %w: %s", idem.ErrLeaseLost, why)) {
		le.l.log.Warn("lock/redis: lease lost", "why", why, "fence", le.fence.String())
	}
}

// over returns nil while the lease can be trusted, and the reason of its end after that.
// It ends a lease whose time is over.
func (le *lease) over() error {
	le.mu.Lock()
	late := le.phase == held && !le.l.now().Before(le.deadline)
	le.mu.Unlock()
	if late {
		le.lose("its renewal was not acknowledged in time")
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.phase == released {
		return fmt.Errorf("lock/redis: %w: it was released", idem.ErrLeaseLost)
	}
	return le.err
}

// renewal takes note of the answer to a renewal sent at a time. An acknowledged one starts
// the trust anew from that time. A late one changes nothing.
func (le *lease) renewal(sent leaseclock.Instant, ours bool) {
	if !ours {
		le.lose("its key is gone, or another owner's")
	}
	if le.over() != nil {
		return
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.phase != held || !sent.After(le.renewed) {
		return
	}
	le.renewed, le.deadline = sent, sent.Add(trustOf(le.l.ttl))
	le.timer.Reset(le.deadline.Sub(le.l.now()))
}

// due reports whether the lease is old enough to be renewed.
func (le *lease) due(now leaseclock.Instant) bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.phase == held && now.Sub(le.renewed) >= heartbeatOf(le.l.ttl)
}

// left is how long the lease can be trusted.
func (le *lease) left() time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.deadline.Sub(le.l.now())
}

// Check implements [idem.Lease]. It always asks Redis and renews the lock, so it returns
// nearly the whole time for which a lease is trusted.
func (le *lease) Check(ctx context.Context) (time.Duration, error) {
	if err := le.over(); err != nil {
		return 0, err
	}
	call, cancel := context.WithTimeout(ctx, le.left())
	defer cancel()
	var failed error
	sent := le.l.now()
	le.l.keeper.extend(call, []*lease{le}, func(_ *lease, ours bool, err error) {
		if failed = err; err == nil {
			le.renewal(sent, ours)
		}
	})
	if over := le.over(); over != nil {
		return 0, over
	}
	if failed != nil {
		return 0, unavailable("check", failed)
	}
	if left := le.left(); left > 0 {
		return left, nil
	}
	return 0, le.over()
}

// Release implements [idem.Lease].
func (le *lease) Release(ctx context.Context) error {
	le.ReleaseInBackground()
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

// ReleaseInBackground implements [idem.Lease]. Close waits for the release.
func (le *lease) ReleaseInBackground() {
	le.finish(released, nil)
	le.releasing.Do(func() {
		le.l.removeLater(le.id, le.owner, false, func(err error) {
			le.goneErr = err
			close(le.gone)
		})
	})
}
