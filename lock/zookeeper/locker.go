package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Locker has an exclusive lock for each key ID. The lock is an ephemeral znode. A Locker is
// safe for concurrent use.
type Locker struct {
	c       *Client
	marking bool // its leases may leave markers
}

var _ driver.Locker = (*Locker)(nil)

// LockerOption changes how [Client.Locker] makes a Locker. A nil option does nothing.
type LockerOption func(*Locker)

// Locker returns a locker. All lockers of all clients with the same Config.Root exclude
// each other, even with different options.
func (c *Client) Locker(opts ...LockerOption) *Locker {
	l := &Locker{c: c}
	for _, opt := range opts {
		if opt != nil {
			opt(l)
		}
	}
	return l
}

// TryAcquire implements [driver.Locker]. Its leases are [*Lease]. If this client is just
// giving the lock back, TryAcquire waits until it has. If another application has a
// persistent znode at the path of the lock, the error wraps driver.ErrUnavailable.
func (l *Locker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	path := l.c.cfg.lockPath(req.KeyID)
	for {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: acquire: %w", driver.ErrUnavailable, context.Cause(ctx))
		}
		s, err := l.c.usable()
		if err != nil {
			return nil, err
		}
		mine, other, err := s.Claim(path)
		switch {
		case err != nil:
			return nil, err
		case mine != nil:
			m := &marks{s: s, path: path, on: l.marking, owner: s.Owned(req.Nonce.String())}
			lease, err := m.acquire(ctx, mine)
			if err != nil {
				return nil, err
			}
			return lease, nil
		case !other.Releasing():
			return nil, fmt.Errorf("%w: in this process", driver.ErrLocked)
		}
		if err := s.Await(ctx, other.Freed()); err != nil {
			return nil, err
		}
	}
}

// Wait implements [driver.Locker]. The waiters of a process share a watch. Wait may return
// too early, after a reconnect for example. A marker without a lock below it looks free,
// and so does any other persistent znode in the place of the lock.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := l.c.usable()
	if err != nil {
		return err
	}
	err = s.awaitFree(ctx, l.c.cfg.lockPath(id))
	if err == nil {
		err = s.AwaitUp(ctx) // the caller will try to take the lock
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && s.Err() == nil: // otherwise the next session may tell
		return fmt.Errorf("%w: wait: %w", driver.ErrUnavailable, err)
	}
	return nil
}

// awaitFree waits for the end of the lock at path, or below the marker at path.
//
// It does not watch a marker. A marker may stay for days, and so would the watch. So the
// first read leaves no watch.
func (s *locks) awaitFree(ctx context.Context, path string) error {
	if cl := s.Find(path); cl != nil { // a lock of this process
		return s.Await(ctx, cl.Freed())
	}
	n, err := s.DecideFor(ctx, path, session.OfNode)
	if err != nil || !n.Exists {
		return err
	}
	at := path
	if n.Session == 0 {
		at += lockChild
	}
	for {
		watch := s.Watch(at, session.OnNode, nil)
		if err := s.Await(ctx, watch.Armed()); err != nil {
			return err
		}
		found, err := watch.Found()
		switch {
		case session.Refusal(err):
			return err
		case err == nil && found.Exists && found.Session == 0: // marked meanwhile, or no lock
			at += lockChild
		default:
			return s.Await(ctx, watch.Woken()) // at once, if there is no lock
		}
	}
}

// Ping implements [driver.Locker]. It makes a pinned write. All callers of the moment share
// the write. Only a write proves that the quorum works and would take a lock. Servers answer
// reads, ZooKeeper's own sync and pings without a quorum.
func (l *Locker) Ping(ctx context.Context) error {
	s, err := l.c.usable()
	if err != nil {
		return err
	}
	return s.Barrier(ctx)
}

// Visibility implements [driver.Locker].
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }
