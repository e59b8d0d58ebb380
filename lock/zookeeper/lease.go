package zookeeper

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

// Lease is a lock held through a session. It is safe for concurrent use.
type Lease struct {
	s     *locks
	slot  *slot
	place *place             // in a line, whose turn it is; nil for a plain lock
	czxid int64              // of a plain lock it is guarded by mu: see at
	taken leaseclock.Instant // before the znode was made
	fence idem.Fence
	done  chan struct{}
	hold  *session.Hold // of the session's trust

	mu       sync.Mutex
	finished bool
	err      error
	ends     []*func(error) // to be told of the end
	revoked  chan struct{}  // nil until somebody asks for it
	asked    bool           // to let go; revoked is closed then
	marks    marks
	attended sync.Once

	// gone is closed when the znode is known to be gone, or the session is
	// over; goneErr, set before, is for the case that it is not known.
	gone    chan struct{}
	goneErr error
}

var _ idem.Lease = (*Lease)(nil)

// Fence implements [idem.Lease]: its token is the czxid of the lock's znode, as it
// was when the lock was taken ([Lease.MarkBegun] makes it anew). After
// [RWMutex.Downgrade] it is the writer's.
func (l *Lease) Fence() idem.Fence { return l.fence }

// Done implements [idem.Lease].
func (l *Lease) Done() <-chan struct{} { return l.done }

// Err implements [idem.Lease]. It reads the lease clock, so that it tells of the loss
// also where Done is late: after the machine was suspended.
func (l *Lease) Err() error {
	if l.running() {
		l.s.LeaseTrusted()
	}
	return l.failure()
}

func (l *Lease) running() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.finished
}

// failure is Err as far as it is known, without a look at the clock.
func (l *Lease) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.err
}

// finish ends the lease for its holder. It returns false when that had happened
// already: what is lost stays lost.
func (l *Lease) finish(err error) bool {
	ended := l.end(err)
	if ended {
		l.hold.End()
	}
	return ended
}

// lost ends the lease when the session cannot be trusted any more.
func (l *Lease) lost(err error) { l.end(err) }

// overdue gives back the lock of a lease that was lost, if the session lives on.
func (l *Lease) overdue() {
	l.s.mu.Lock()
	defer l.s.mu.Unlock()
	l.s.beginRelease(l)
}

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

// onEnd has f called when the lease ends, with what Err is then, before anything
// else can happen; at once, where it has ended. The lease's and the session's
// locks are held then: f must not wait for anything, nor use either of them.
// forget takes that back.
func (l *Lease) onEnd(f func(error)) (forget func()) {
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

// over returns why a lease that has ended is not held any more.
func (l *Lease) over() error {
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

// Check implements [idem.Lease]. It always reads the lock's znode, so that one
// deleted by hand is noticed. While the connection is down it waits for another
// one, until ctx ends or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) {
	s := l.s
	if err := l.Err(); err != nil {
		return 0, err
	}
	there, err := l.look(ctx)
	if over := l.over(); over != nil {
		return 0, over
	}
	if err != nil {
		return 0, fmt.Errorf("%w: check: %w", idem.ErrUnavailable, err)
	}
	if !there {
		s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
		return 0, l.over()
	}
	left := s.Left()
	if over := l.over(); over != nil {
		return 0, over
	}
	return left, nil
}

// look reads whether the lock's znode is there, having made a write where the last
// one is old.
func (l *Lease) look(ctx context.Context) (there bool, err error) {
	s := l.s
	if err := s.AwaitUp(ctx); err != nil {
		return false, err
	}
	if s.Stale() {
		if err := s.Barrier(ctx); err != nil {
			return false, err
		}
	}
	for {
		if m := l.marking(); m != nil { // the znode is about to become another one
			select {
			case <-m.done:
			case <-ctx.Done():
				return false, context.Cause(ctx)
			}
		}
		path, czxid := l.at()
		n, err := s.DecideFor(ctx, path, session.OfNode)
		if err != nil || n.Exists && n.Czxid == czxid {
			return err == nil, err
		}
		under := l.marking()
		if now, _ := l.at(); now == path && under == nil { // it was not moved before that
			return false, nil
		}
	}
}

// at is where the znode of a plain lock is, and its czxid. Only MarkBegun changes
// them.
func (l *Lease) at() (path string, czxid int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.slot.znode(), l.czxid
}

// lose ends a lease whose znode is not there any more.
func (s *locks) lose(l *Lease, err error) {
	s.mu.Lock()
	lost := l.finish(err)
	s.beginRelease(l)
	s.mu.Unlock()
	if lost {
		path, _ := l.at()
		s.log.Warn("zookeeper: lock vanished while held", "path", path, "fence", l.fence.String())
	}
}
