package leasing

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

var _ driver.Lease = (*Lease)(nil)

// Lease is a lock held on the server. It ends once, by its release or by its loss.
//
//	held ──▶ released ──▶ gone
//	  └────▶ lost ────────▲ release
type Lease struct {
	l     *Locker
	lock  Lock
	fence driver.Fence
	done  chan struct{} // closed when the lease ends

	mu      sync.Mutex
	ended   error              // nil while the lease is held
	renewed leaseclock.Instant // just before the last acknowledged renewal was sent
	timer   *time.Timer        // closes done at the end of trust; nil while the lease is young

	releasing atomic.Bool
	gone      chan struct{} // closed when the lock is gone, or the release is given up
	goneErr   error         // set before gone closes
}

// Fence implements [driver.Lease].
func (le *Lease) Fence() driver.Fence { return le.fence }

// Done implements [driver.Lease].
func (le *Lease) Done() <-chan struct{} { return le.done }

// Err implements [driver.Lease]. It reads the lease clock, so it tells of a loss before Done
// does if the machine was suspended.
func (le *Lease) Err() error {
	if err := le.over(); !errors.Is(err, le.l.released) {
		return err
	}
	return nil
}

// over returns nil while the lease can be trusted, and then the reason of its end. It ends
// the lease if its time is over.
func (le *Lease) over() error {
	if le.left() <= 0 {
		le.lose("its renewal was not acknowledged in time")
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.ended
}

// left is how long the lease can be trusted.
func (le *Lease) left() time.Duration {
	le.mu.Lock()
	defer le.mu.Unlock()
	return le.l.trustSince(le.renewed)
}

// guard makes Done close when trust ends. The heartbeat calls it before it renews the lease
// for the first time. Most leases are released before that, and need no timer. The timer
// only closes Done. Err and Check read the clock. The timer stands still in a suspended
// machine, so the heartbeat looks at the clock too.
func (le *Lease) guard() {
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.ended == nil && le.timer == nil {
		le.arm()
	}
}

// arm sets the timer to the end of trust. The caller holds mu.
func (le *Lease) arm() {
	left := le.l.trustSince(le.renewed)
	if le.timer == nil {
		le.timer = time.AfterFunc(left, func() { _ = le.over() })
		return
	}
	le.timer.Reset(left)
}

// finish ends the lease. It returns false if the lease has ended before. A lost lease
// stays lost.
func (le *Lease) finish(why error) bool {
	le.mu.Lock()
	if le.ended != nil {
		le.mu.Unlock()
		return false
	}
	le.ended = why
	if le.timer != nil {
		le.timer.Stop()
	}
	close(le.done)
	le.mu.Unlock()
	le.l.drop(le)
	return true
}

// lose ends the lease against its holder's will, and logs it.
func (le *Lease) lose(why string) {
	if le.finish(fmt.Errorf("%s: %w: %s", le.l.name, driver.ErrLeaseLost, why)) {
		le.l.log.Warn(le.l.name+": lease lost", "why", why, "fence", le.fence.String())
	}
}

// renewal takes note of the answer to a renewal. sent is when the renewal was sent. If the server
// acknowledged it, trust runs from sent on. A late answer changes nothing.
func (le *Lease) renewal(sent leaseclock.Instant, ours bool) {
	if !ours {
		le.lose(ErrGone.Error())
	}
	if le.over() != nil {
		return
	}
	le.mu.Lock()
	defer le.mu.Unlock()
	if le.ended == nil && sent.After(le.renewed) {
		le.renewed = sent
		le.arm()
	}
}

// Check implements [driver.Lease]. It always asks the server and renews the lock, so it returns
// nearly the whole time of trust.
func (le *Lease) Check(ctx context.Context) (time.Duration, error) {
	if err := le.over(); err != nil {
		return 0, err
	}
	call, cancel := context.WithTimeout(ctx, le.left())
	defer cancel()
	failed := le.l.renew(call, []*Lease{le})
	left := le.left() // before over, which ends a lease without time
	if err := le.over(); err != nil {
		return 0, err
	}
	if failed != nil {
		return 0, le.l.Unavailable("check", failed)
	}
	return left, nil
}

// Release implements [driver.Lease]. If ctx is cancelled, Release returns when the server answers,
// and after two seconds at most.
func (le *Lease) Release(ctx context.Context) error {
	r := le.removal()
	if r != nil && !r.tryHere(ctx) {
		r.start()
	}
	select {
	case <-le.gone:
		return le.goneErr
	case <-ctx.Done():
	}
	select {
	case <-le.gone:
		return le.goneErr
	default:
	}
	why := context.Cause(ctx)
	if r != nil {
		if failed := r.failed.Load(); failed != nil { // the server may have said more
			why = errors.Join(why, *failed)
		}
	}
	return le.l.Unavailable("release goes on in the background", why)
}

// ReleaseInBackground implements [driver.Lease]. Close waits for the release.
func (le *Lease) ReleaseInBackground() {
	if r := le.removal(); r != nil {
		r.start()
	}
}

// removal ends the lease, and returns the removal of its lock to the first caller.
func (le *Lease) removal() *removal {
	le.finish(le.l.released)
	if le.releasing.Swap(true) {
		return nil
	}
	return le.l.newRemoval(le.lock, true, func(err error) {
		le.goneErr = err
		close(le.gone)
	})
}
