package held

import (
	"context"
	"fmt"
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
// It has more than fifteen methods because it is an [driver.Lease], the handle of its znode
// for the recipes, and the start of the znode's removal. The three share the claim's
// phase, so to divide them would only spread that.
type Lease struct {
	ending
	location

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

// Fence implements [driver.Lease].
func (l *Lease) Fence() driver.Fence { return l.fence }

// Err implements [driver.Lease]. It reads the lease clock. So it tells of a loss even when
// Done is late, after the machine was suspended.
func (l *Lease) Err() error {
	if l.Over() == nil {
		l.t.Trusted()
	}
	return l.loss()
}

// Tag is Znode.Tag.
func (l *Lease) Tag() any { return l.znode.Tag }

// Table has the claims of the lease's session.
func (l *Lease) Table() *Table { return l.t }

// Move announces a write of the holder that may replace the znode by another one. Until
// the write is settled, Check and the release wait. The holder has to call settle then,
// with the znode that is there. Move fails if the lease is over. settle is nil if another
// move is under way. old reports whether the znode has to be read before it is deleted,
// because it is not young.
func (l *Lease) Move() (settle func(path string, czxid int64), old bool, err error) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	if over := l.Over(); over != nil {
		return nil, false, over
	}
	if l.t.Err() != nil || l.claim.phase != holding {
		return nil, false, fmt.Errorf("%w: mark", driver.ErrLeaseLost)
	}
	return l.announce(), l.suspect(), nil
}

// Check implements [driver.Lease]. It always reads the znode, so it notices one that was
// deleted by hand. While the connection is down it waits for another one, until ctx ends
// or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) {
	if err := l.Err(); err != nil {
		return 0, err
	}
	there, err := l.look(ctx)
	left := l.t.Left()
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
	if err := l.t.AwaitUp(ctx); err != nil {
		return false, err
	}
	if l.t.Stale() {
		if err := l.t.Barrier(ctx); err != nil {
			return false, err
		}
	}
	for {
		select {
		case <-l.settled():
		case <-ctx.Done():
			return false, context.Cause(ctx)
		}
		path, czxid := l.Where()
		n, err := l.t.DecideFor(ctx, path, session.OfNode)
		if err != nil || n.Exists && n.Czxid == czxid {
			return err == nil, err
		}
		select {
		case <-l.settled():
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
		l.t.Log.Warn("zookeeper: lock vanished while held", "path", path, "fence", l.fence.String())
	}
	return l.Over()
}

// Backdate makes the lease older than it is. It is for tests.
func (l *Lease) Backdate(d time.Duration) { l.taken = l.taken.Add(-d) }

// location is where the znode of a lease is.
type location struct {
	mu     sync.Mutex
	path   string
	czxid  int64
	moving chan struct{} // closed when the last move was settled
}

// Where is the path of the znode, and its czxid.
func (o *location) Where() (path string, czxid int64) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.path, o.czxid
}

// Is reports whether n is the znode of the lease.
func (o *location) Is(n session.Decided) bool {
	_, czxid := o.Where()
	return n.Exists && n.Czxid == czxid
}

// settled is closed while no move is under way.
func (o *location) settled() <-chan struct{} {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.moving
}

// announce begins a move, unless one is under way.
func (o *location) announce() (settle func(path string, czxid int64)) {
	o.mu.Lock()
	defer o.mu.Unlock()
	select {
	case <-o.moving:
	default:
		return nil
	}
	o.moving = make(chan struct{})
	return func(path string, czxid int64) {
		o.mu.Lock()
		defer o.mu.Unlock()
		o.path, o.czxid = path, czxid
		close(o.moving)
	}
}
