package held

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Znode says how a znode is made and removed.
type Znode struct {
	// Make makes the znode, and returns its path and czxid. It goes on until the outcome
	// of its writes is known. With an error it has left no znode.
	Make func(a *Attempt) (path string, czxid int64, err error)

	// Shared says that other owners may make a znode at the same path. Then the znode
	// is read before it is deleted, unless it is young.
	Shared bool

	// Lazy says that a release in the background may wait a moment for other writes.
	Lazy bool

	// Delete returns the operations of the transaction that deletes the znode. The
	// first one deletes it. It is called once with nil, and then after each refusal
	// with the result. It then returns other operations to try at once, or nil to try
	// the same ones again later. If Delete is nil the znode is deleted alone.
	Delete func(l *Lease, refused *session.Result) []any

	// Vanished, if not nil, is called when the znode was gone before its deletion.
	Vanished func()

	// Tag is for the package that makes the znode. [Lease.Tag] returns it.
	Tag any

	// Fence, if not nil, returns the fence of the lease. Otherwise that is the czxid.
	Fence func(czxid int64) driver.Fence
}

// Lease stands for a znode that was made, as long as the session is trusted. It is safe
// for concurrent use.
//
// It has more than fifteen methods, because it is an [driver.Lease] and the handle of its znode for
// the markers (move.go) and the recipes (handle.go). All of them depend on the claim's phase.
type Lease struct {
	ending   ending
	location location

	t     *Table
	claim *Claim
	znode Znode
	taken leaseclock.Instant // before the znode was made
	fence driver.Fence
	hold  *session.Hold // of the session's trust

	// gone is closed when the znode is known to be gone, or the session is over.
	// goneErr, set before, says that the znode may outlive the session for a while.
	gone    chan struct{}
	goneErr error
}

var _ driver.Lease = (*Lease)(nil)

// Done implements [driver.Lease].
func (l *Lease) Done() <-chan struct{} { return l.ending.done }

// Over says why the lease is not held any more, and is nil while it is held.
func (l *Lease) Over() error { return l.ending.over() }

// Where is the path of the znode, and its czxid.
func (l *Lease) Where() (path string, czxid int64) { return l.location.where() }

// Fence implements [driver.Lease].
func (l *Lease) Fence() driver.Fence { return l.fence }

// Err implements [driver.Lease]. It reads the lease clock. So it tells of a loss even when
// Done is late, after the machine was suspended.
func (l *Lease) Err() error {
	if l.Over() == nil {
		l.t.Session.Trust.Trusted()
	}
	return l.ending.loss()
}

// Check implements [driver.Lease]. It always reads the znode, so it notices one that was
// deleted by hand. While the connection is down it waits for another one, until ctx ends
// or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	there, err := l.look(ctx)
	left := l.t.Session.Trust.Left()
	switch over := l.Over(); {
	case over != nil:
		return 0, over
	case err != nil:
		return 0, fmt.Errorf("%w: check: %w", driver.ErrUnavailable, err)
	case !there:
		return 0, l.Lose()
	}
	return left, nil
}

// look reads whether the znode is there. If the last acknowledged write is old, it makes
// another one first.
func (l *Lease) look(ctx context.Context) (there bool, err error) {
	if err := l.t.Session.Status.AwaitUp(ctx); err != nil {
		return false, err
	}
	if l.t.Session.Trust.Stale() {
		if err := l.t.Session.Pulse.Barrier(ctx); err != nil {
			return false, err
		}
	}
	for {
		select {
		case <-l.location.settled():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		path, czxid := l.Where()
		n, err := l.t.Session.Reads.DecideFor(ctx, path, session.OfNode)
		if err != nil || n.Exists && n.Czxid == czxid {
			return err == nil, err
		}
		select {
		case <-l.location.settled():
			if now, _ := l.Where(); now == path { // it was not moved before the read
				return false, nil
			}
		default:
		}
	}
}

// Lose ends the lease because its znode is gone, and returns why it is over.
func (l *Lease) Lose() error {
	l.t.mu.Lock()
	lost := l.finish(fmt.Errorf("%w: its znode is gone", driver.ErrLeaseLost))
	l.beginRelease(false)
	l.t.mu.Unlock()
	if lost {
		path, _ := l.Where()
		l.t.Client.Log.Warn("zookeeper: lock vanished while held", "path", path, "fence", l.fence.String())
	}
	return l.Over()
}

// ending is whether and why a lease has ended. mu may be taken while the session's lock
// is held.
type ending struct {
	done chan struct{}

	mu       sync.Mutex
	finished bool
	err      error
	ends     []*func(error) // to be told of the end
}

// over is explained at Lease.Over, and onEnd at Lease.OnEnd.
func (e *ending) over() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished && e.err == nil {
		return fmt.Errorf("%w: it was released", driver.ErrLeaseLost)
	}
	return e.err
}

// loss is why the lease was lost, as far as it is known without a look at the clock.
func (e *ending) loss() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.err
}

func (e *ending) onEnd(f func(error)) (forget func()) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished {
		f(e.err)
		return func() {}
	}
	entry := &f
	e.ends = append(e.ends, entry)
	return func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.ends = slices.DeleteFunc(e.ends, func(other *func(error)) bool { return other == entry })
	}
}

// end ends the lease. It returns false if it had ended already. A lost lease stays lost.
func (e *ending) end(err error) bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.finished {
		return false
	}
	e.finished, e.err = true, err
	close(e.done)
	for _, f := range e.ends {
		(*f)(err)
	}
	e.ends = nil
	return true
}
