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
	owner string // the lock's, never used again
	fence idem.Fence
	done  chan struct{} // closed when it leaves phase held

	mu       sync.Mutex
	phase    phase
	err      error
	renewed  leaseclock.Instant // before the last acknowledged renewal was sent
	deadline leaseclock.Instant // when trust ends
	timer    *time.Timer

	releasing sync.Once
	gone      chan struct{} // closed when the lock is known to be gone, or given up
	goneErr   error         // set before
}

func newLease(l *Locker, id idem.KeyID, owner string, fence idem.Fence, sent leaseclock.Instant) *lease {
	return &lease{l: l, id: id, owner: owner, fence: fence, done: make(chan struct{}), gone: make(chan struct{}),
		renewed: sent, deadline: sent.Add(trustOf(l.ttl))}
}

// start lets the time run. It is false when that is over already.
func (le *lease) start() bool {
	le.mu.Lock()
	defer le.mu.Unlock()
	left := le.deadline.Sub(le.l.now())
	if left <= 0 {
		return false
	}
	// The timer only wakes those who wait for the end; those who ask are told by the
	// clock. It stands still in a suspended machine, so that the heartbeat looks, too.
	le.timer = time.AfterFunc(left, func() { _ = le.over() })
	return true
}

// Fence implements [idem.Lease].
func (le *lease) Fence() idem.Fence { return le.fence }

// Done implements [idem.Lease].
func (le *lease) Done() <-chan struct{} { return le.done }

// Err implements [idem.Lease]. It reads the lease clock, so that it tells of the loss
// also where Done is late: after the machine was suspended.
func (le *lease) Err() error {
	_ = le.over()
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.err
}

// finish ends the lease for its holder. It returns false when that had happened
// already: what is lost stays lost.
func (le *lease) finish(p phase, err error) bool {
	le.mu.Lock()
	ended := le.finishLocked(p, err)
	le.mu.Unlock()
	if ended {
		le.l.drop(le)
	}
	return ended
}

func (le *lease) finishLocked(p phase, err error) bool {
	if le.phase != held {
		return false
	}
	le.phase, le.err = p, err
	le.timer.Stop()
	close(le.done)
	return true
}

// lose ends the lease against its holder's will, and tells the log.
func (le *lease) lose(why string) {
	if le.finish(lost, fmt.Errorf("lock/redis: %w: %s", idem.ErrLeaseLost, why)) {
		le.l.log.Warn("lock/redis: lease lost", "why", why, "fence", le.fence.String())
	}
}

// over returns why the lease has ended, and nil while it can be trusted. It
// ends a lease that cannot: the timer calls it, too.
func (le *lease) over() error {
	le.mu.Lock()
	late := le.phase == held && !le.l.now().Before(le.deadline)
	le.mu.Unlock()
	if late {
		le.lose("its renewal was not acknowledged in time")
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	switch le.phase {
	case lost:
		return le.err
	case released:
		return fmt.Errorf("lock/redis: %w: it was released", idem.ErrLeaseLost)
	}
	return nil
}

// confirm counts a renewal that was acknowledged: trust starts anew from when it
// was sent. One that comes too late changes nothing.
func (le *lease) confirm(sent leaseclock.Instant) {
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

// left is for how long the lease can be trusted.
func (le *lease) left() time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.deadline.Sub(le.l.now())
}

// Check implements [idem.Lease]. It always asks Redis, and renews the lock: what
// it returns is nearly the whole time for which a lease is trusted.
func (le *lease) Check(ctx context.Context) (time.Duration, error) {
	if err := le.over(); err != nil {
		return 0, err
	}
	sent, asked := le.l.now(), time.Now()
	call, cancel := context.WithTimeout(ctx, le.left())
	defer cancel()
	ours, err := le.l.extend(call, le.id, le.owner)
	le.l.health.note(shardOf(le.id), asked, err)
	switch {
	case err == nil && ours:
		le.confirm(sent)
	case err == nil:
		le.lose("its key is gone, or another owner's")
	}
	if over := le.over(); over != nil {
		return 0, over
	}
	if err != nil {
		return 0, unavailable("check", err)
	}
	if left := le.left(); left > 0 {
		return left, nil
	}
	return 0, le.over()
}
