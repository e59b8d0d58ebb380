package held

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Lease stands for a znode that was made, as long as the session is trusted. It is safe
// for concurrent use.
type Lease struct {
	t     *Table
	claim *Claim
	znode Znode
	taken leaseclock.Instant // before the znode was made
	fence idem.Fence
	hold  *session.Hold // of the session's trust
	done  chan struct{}

	mu       sync.Mutex
	path     string // of the znode
	czxid    int64
	moving   chan struct{} // closed when the move under way is settled; nil: none
	finished bool
	err      error
	ends     []*func(error) // to be told of the end

	// gone is closed when the znode is known to be gone, or the session is over.
	// goneErr, set before, says that the znode may outlive the session for a while.
	gone    chan struct{}
	goneErr error
}

var _ idem.Lease = (*Lease)(nil)

// Fence implements [idem.Lease].
func (l *Lease) Fence() idem.Fence { return l.fence }

// Done implements [idem.Lease].
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err implements [idem.Lease]. It reads the lease clock. So it tells of a loss even when
// Done is late, after the machine was suspended.
func (l *Lease) Err() error {
	select {
	case <-l.done:
	default:
		l.t.Trusted()
	}
	return l.failure()
}

// failure is Err as far as it is known, without a look at the clock.
func (l *Lease) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// Over says why the lease is not held any more, and is nil while it is held.
func (l *Lease) Over() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case !l.finished:
		return nil
	case l.err != nil:
		return l.err
	}
	return fmt.Errorf("%w: it was released", idem.ErrLeaseLost)
}

// Tag is Znode.Tag.
func (l *Lease) Tag() any { return l.znode.Tag }

// Table has the claims of the lease's session.
func (l *Lease) Table() *Table { return l.t }

// Where is the path of the znode, and its czxid.
func (l *Lease) Where() (path string, czxid int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.path, l.czxid
}

// Move announces a write of the holder that may replace the znode by another one. Until
// the write is settled, Check and the release wait. settle has to be called then, with the
// znode that is there. Move fails if the lease is over. settle is nil if another move is
// under way. old reports whether the znode has to be read before it is deleted, because
// it is not young.
func (l *Lease) Move() (settle func(path string, czxid int64), old bool, err error) {
	if over := l.Over(); over != nil {
		return nil, false, over
	}
	old = l.suspect()
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if l.t.Err() != nil || l.claim.phase != holding {
		return nil, false, fmt.Errorf("%w: mark", idem.ErrLeaseLost)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.moving != nil {
		return nil, old, nil
	}
	moving := make(chan struct{})
	l.moving = moving
	return func(path string, czxid int64) {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.path, l.czxid, l.moving = path, czxid, nil
		close(moving)
	}, old, nil
}

// end ends the lease. It returns false if it had ended already. A lost lease stays lost.
func (l *Lease) end(err error) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finished {
		return false
	}
	l.finished, l.err = true, err
	close(l.done)
	for _, f := range l.ends {
		(*f)(err)
	}
	l.ends = nil
	return true
}

// finish is end for all callers but the session.
func (l *Lease) finish(err error) bool {
	ended := l.end(err)
	if ended {
		l.hold.End()
	}
	return ended
}

// lost ends the lease when the session cannot be trusted any more.
func (l *Lease) lost(err error) { l.end(err) }

// overdue removes the znode of a lost lease, if the session lives on.
func (l *Lease) overdue() {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.beginRelease()
}

// OnEnd has f called when the lease ends, with what Err is then, before anything else can
// happen. If the lease has ended, f is called at once. The lease's and the session's locks
// are held during the call, so f must not wait for anything and must not use either of
// them. forget takes the call back.
func (l *Lease) OnEnd(f func(error)) (forget func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.finished {
		f(l.err)
		return func() {}
	}
	entry := &f
	l.ends = append(l.ends, entry)
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.ends = slices.DeleteFunc(l.ends, func(e *func(error)) bool { return e == entry })
	}
}

// Check implements [idem.Lease]. It always reads the znode, so it notices one that was
// deleted by hand. While the connection is down it waits for another one, until ctx ends
// or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	there, err := l.look(ctx)
	if over := l.Over(); over != nil {
		return 0, over
	}
	if err != nil {
		return 0, fmt.Errorf("%w: check: %w", idem.ErrUnavailable, err)
	}
	if !there {
		return 0, l.Lose()
	}
	left := l.t.Left()
	if over := l.Over(); over != nil {
		return 0, over
	}
	return left, nil
}

// look reads whether the znode is there. If the last acknowledged write is old, it makes
// another one first.
func (l *Lease) look(ctx context.Context) (there bool, err error) {
	if err := l.t.AwaitUp(ctx); err != nil {
		return false, err
	}
	if l.t.Stale() {
		if err := l.t.Barrier(ctx); err != nil {
			return false, err
		}
	}
	for {
		if moving := l.underway(); moving != nil {
			select {
			case <-moving:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		}
		path, czxid := l.Where()
		n, err := l.t.DecideFor(ctx, path, session.OfNode)
		if err != nil || n.Exists && n.Czxid == czxid {
			return err == nil, err
		}
		moving := l.underway()
		if now, _ := l.Where(); now == path && moving == nil { // it was not moved before the read
			return false, nil
		}
	}
}

// underway is the move under way, or nil.
func (l *Lease) underway() chan struct{} {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.moving
}

// Is reports whether a znode that was read is that of the lease.
func (l *Lease) Is(n session.Decided) bool {
	_, czxid := l.Where()
	return n.Exists && n.Czxid == czxid
}

// Lose ends the lease because its znode is gone, and returns why it is over.
func (l *Lease) Lose() error {
	l.t.mu.Lock()
	lost := l.finish(fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
	l.beginRelease()
	l.t.mu.Unlock()
	if lost {
		path, _ := l.Where()
		l.t.Log.Warn("zookeeper: lock vanished while held", "path", path, "fence", l.fence.String())
	}
	return l.Over()
}

// Backdate makes the lease older than it is. It is for tests.
func (l *Lease) Backdate(d time.Duration) { l.taken = l.taken.Add(-d) }
