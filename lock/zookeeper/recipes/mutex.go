package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// Mutex is a fair exclusive lock on a path: it is had in the order in which it
// was asked for, over all processes. It is not reentrant; [ReentrantMutex] is. It
// is safe for concurrent use; Mutexes of one path, in this process or any other,
// exclude each other.
//
// Each caller has an ephemeral sequential znode below the path and waits for the
// one before it alone (the lock recipe of ZooKeeper's documentation), so that a
// hand-over costs one delete, one notification and one read, however many wait.
type Mutex struct {
	ln        *lineup
	listeners []*listener.Mailbox[LockEvent]
}

// NewMutex returns the mutex on an absolute path below the chroot. Its parents are made
// when they are missing, and the path itself goes some time after its last use.
func NewMutex(in zookeeper.Root, path string, opts ...MutexOption) *Mutex {
	m := &Mutex{ln: newLineup(in, path)}
	for _, opt := range opts {
		if opt != nil {
			opt(m)
		}
	}
	return m
}

// Acquire waits for the lock. When it loses its place in line, with a session
// that is over for one, it takes another as [Config].Retry allows.
//
// The error wraps idem.ErrLocked where ctx ended while others had the lock, and
// idem.ErrUnavailable where ZooKeeper could not be asked; with either the cause
// of ctx, if it has ended. The place in line is given up, in the background.
func (m *Mutex) Acquire(ctx context.Context) (*Lease, error) {
	lease, err := m.ln.acquire(ctx, exclusive, m.ln.owned(), first)
	if err == nil {
		m.tell(lease)
	}
	return lease, err
}

// TryAcquire returns the lock if it is free, and an error that wraps
// idem.ErrLocked if it is not. A lock that this very client is just giving back is
// waited for.
//
// It wraps idem.ErrUnavailable where ZooKeeper could not be asked, and
// idem.ErrLeaseLost where the trust in the session ran out meanwhile, as in a
// machine that was suspended. No lock was taken with any of these errors.
func (m *Mutex) TryAcquire(ctx context.Context) (*Lease, error) {
	lease, err := m.ln.tryAcquire(ctx, exclusive, m.ln.owned(), first)
	if err == nil {
		m.tell(lease)
	}
	return lease, err
}

// exclusive is the role of places in the line of a mutex.
const exclusive = "lock"
