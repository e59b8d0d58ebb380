package recipes

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Hold is one of an owner's holds on a [ReentrantMutex]. It is safe for
// concurrent use.
type Hold struct {
	r     *ReentrantMutex
	owner any
	t     *tenure
	done  chan struct{}

	// Guarded by r.mu.
	finished bool
	last     bool // the one that gave the lock back
	err      error
}

var _ idem.Lease = (*Hold)(nil)

// Fence implements [idem.Lease]. All holds of an owner at a time have the same.
func (h *Hold) Fence() idem.Fence { return h.t.lease.Fence() }

// Done implements [idem.Lease]: it is closed when this hold was released, or the
// lock lost.
func (h *Hold) Done() <-chan struct{} { return h.done }

// Err implements [idem.Lease], see [Lease.Err].
func (h *Hold) Err() error {
	_ = h.t.lease.Err() // where it is lost, the holds are told
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return h.err
}

// Count is the number of holds that the owner has on the lock: 0 when it has
// been released or lost.
func (h *Hold) Count() int {
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	return len(h.t.holds)
}

// Revoked is that of the lease, see [Lease.Revoked].
func (h *Hold) Revoked() <-chan struct{} { return h.t.lease.Revoked() }

// Check implements [idem.Lease]. A hold that was released is over, also while
// the owner has others.
func (h *Hold) Check(ctx context.Context) (time.Duration, error) {
	left, err := h.t.lease.Check(ctx)
	h.r.mu.Lock()
	defer h.r.mu.Unlock()
	switch {
	case h.err != nil:
		return 0, h.err
	case h.finished:
		return 0, fmt.Errorf("%w: it was released", idem.ErrLeaseLost)
	}
	return left, err
}

// Release implements [idem.Lease]: it gives up this hold, and with the owner's
// last one the lock, for which it waits. Releasing a hold twice counts once.
func (h *Hold) Release(ctx context.Context) error {
	if !h.giveUp() {
		return nil
	}
	return h.t.lease.Release(ctx)
}

// ReleaseInBackground implements [idem.Lease].
func (h *Hold) ReleaseInBackground() {
	if h.giveUp() {
		h.t.lease.ReleaseInBackground()
	}
}

// giveUp ends a hold. It is true where the lock goes with it, or is gone: also
// when it is called again, so that a second Release can wait for the same.
func (h *Hold) giveUp() (last bool) {
	r, t := h.r, h.t
	r.mu.Lock()
	defer r.mu.Unlock()
	h.finish(nil)
	if _, counted := t.holds[h]; counted {
		delete(t.holds, h)
		if h.last = len(t.holds) == 0; h.last && r.tenures[h.owner] == t {
			delete(r.tenures, h.owner) // the next acquire queues up
		}
	}
	return h.last || t.over
}

// finish ends the hold for its owner, once. Needs r.mu.
func (h *Hold) finish(err error) {
	if !h.finished {
		h.finished, h.err = true, err
		close(h.done)
	}
}
