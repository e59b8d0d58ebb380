package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Locker is an exclusive lock per key ID: one ephemeral znode. It is safe for
// concurrent use.
type Locker struct {
	c       *Client
	marking bool // its leases may leave markers
}

var _ idem.Locker = (*Locker)(nil)

// LockerOption changes what [NewLocker] returns. A nil option does nothing.
type LockerOption func(*Locker)

// NewLocker returns a locker of a client. All lockers of a client, and of all
// clients with the same Config.Root, exclude each other, whatever their options.
func NewLocker(c *Client, opts ...LockerOption) *Locker {
	l := &Locker{c: c}
	for _, opt := range opts {
		if opt != nil {
			opt(l)
		}
	}
	return l
}

// TryAcquire implements [idem.Locker]; its leases are [*Lease]. A lock that this
// very client is just giving back is waited for. A persistent znode in place of
// the lock that is no marker is ErrUnavailable: somebody else's path.
func (l *Locker) TryAcquire(ctx context.Context, req idem.LockRequest) (idem.Lease, error) {
	path := l.c.cfg.lockPath(req.KeyID)
	for {
		if ctx.Err() != nil {
			return nil, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, context.Cause(ctx))
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
			lease, err := s.acquire(ctx, mine, s.Owned(req.Nonce.String()), l.marking)
			if err != nil {
				return nil, err
			}
			return lease, nil
		case !other.Releasing():
			return nil, fmt.Errorf("%w: in this process", idem.ErrLocked)
		}
		if err := s.Await(ctx, other.Freed()); err != nil {
			return nil, err
		}
	}
}

// Ping implements [idem.Locker]. It makes a pinned write, shared with others
// that wait for one, because nothing else proves that the quorum works and
// would take a lock: reads and ZooKeeper's own sync and pings are answered
// without one.
func (l *Locker) Ping(ctx context.Context) error {
	s, err := l.c.usable()
	if err != nil {
		return err
	}
	return s.Barrier(ctx)
}

// Visibility implements [idem.Locker].
func (l *Locker) Visibility() idem.Visibility { return idem.VisibilityShared }
