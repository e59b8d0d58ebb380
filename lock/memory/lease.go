package memorylock

import (
	"context"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

var _ idem.Lease = (*lease)(nil)

// trusted is what Check returns: a lease in memory has no time-out.
const trusted = 365 * 24 * time.Hour

var (
	errRevoked  = fmt.Errorf("lock/memory: lock was revoked: %w", idem.ErrLeaseLost)
	errReleased = fmt.Errorf("lock/memory: lease was released before: %w", idem.ErrLeaseLost)
)

// phase is how far a lease has come.
type phase = uint32

const (
	held phase = iota
	released
	lost
)

// lease is a lock held in one shard. It leaves phase held once, and in the same
// step it leaves the shard's map.
type lease struct {
	shard   *shard
	request idem.LockRequest
	fence   idem.Fence

	phase atomic.Uint32 // changes under shard.mu
	done  chan struct{} // guarded by shard.mu; nil until somebody asks for it
}

// closed is what Done returns where nobody had asked before the lease ended.
var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()

// Fence implements [idem.Lease].
func (le *lease) Fence() idem.Fence { return le.fence }

// Done implements [idem.Lease].
func (le *lease) Done() <-chan struct{} {
	le.shard.mu.Lock()
	defer le.shard.mu.Unlock()
	return le.doneLocked()
}

// Err implements [idem.Lease].
func (le *lease) Err() error {
	if le.phase.Load() == lost {
		le.shard.mu.Lock() // whoever ends it closes done before that is free
		defer le.shard.mu.Unlock()
		return errRevoked
	}
	return nil
}

// Check implements [idem.Lease]. There is no server to ask, so it never waits
// and the lease can be trusted for a year. A caller whose ctx has ended is told
// ctx.Err() all the same: it should not go on.
func (le *lease) Check(ctx context.Context) (time.Duration, error) {
	switch le.phase.Load() {
	case lost:
		return 0, errRevoked
	case released:
		return 0, errReleased
	}
	if err := ctx.Err(); err != nil {
		return 0, err
	}
	return trusted, nil
}

// Release implements [idem.Lease]. It always succeeds, ctx ended or not.
func (le *lease) Release(context.Context) error {
	le.shard.mu.Lock()
	defer le.shard.mu.Unlock()
	if le.phase.Load() == held {
		le.endLocked(released)
	}
	return nil
}

// ReleaseBehind implements [idem.Lease]. Release takes no time here.
func (le *lease) ReleaseBehind() { _ = le.Release(context.Background()) }

// endLocked frees the lock and wakes everybody who waits for that. The caller
// holds shard.mu and knows that le is the holder.
func (le *lease) endLocked(p phase) {
	le.phase.Store(p)
	delete(le.shard.held, le.request.KeyID)
	if le.done == nil {
		le.done = closed
	} else {
		close(le.done)
	}
}

// doneLocked makes the channel on first use: most leases end unwatched. The
// caller holds shard.mu.
func (le *lease) doneLocked() chan struct{} {
	if le.done == nil {
		le.done = make(chan struct{})
	}
	return le.done
}
