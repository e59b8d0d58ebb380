package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
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

// Client is the client of the locker, for recipes and queues in the same session.
func (l *Locker) Client() *Client { return l.c }

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
		mine, other, err := s.table.Claim(path)
		switch {
		case err != nil:
			return nil, err
		case mine != nil:
			lease, err := acquire(ctx, mine, &marker{s: s, path: path, owner: s.table.Client.Owned(req.Nonce.String()), on: l.marking})
			if err != nil {
				return nil, err
			}
			return lease, nil
		case !other.Releasing():
			return nil, fmt.Errorf("%w: in this process", driver.ErrLocked)
		}
		if err := s.session.Status.Await(ctx, other.Freed()); err != nil {
			return nil, err
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
	return s.session.Pulse.Barrier(ctx)
}

// Visibility implements [driver.Locker].
func (l *Locker) Visibility() driver.Visibility { return driver.VisibilityShared }
