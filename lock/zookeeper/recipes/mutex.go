package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
)

// Mutex is a fair exclusive lock on a path. Callers of all processes get it in the order in
// which they asked. It is not reentrant, but [ReentrantMutex] is. It is safe for concurrent use.
// Mutexes of one path exclude each other, in this process and in others.
//
// Each caller has an ephemeral sequential znode below the path and waits only for the one
// before it, as in the lock recipe of ZooKeeper's documentation. So a hand-over to another
// client costs one delete, one notification and one read, however many callers wait. A waiter
// of the same client has the lock before the delete is applied (handover.go).
type Mutex struct{ ln *lineup }

// NewMutex returns the mutex on an absolute path below the chroot. Missing parents are made.
// The servers remove the path some time after its last use. The error is for wrong wiring, which is
// a path that is not valid or no client. No constructor of this package asks a server.
func NewMutex(in zookeeper.Space, path string, opts ...Option) (*Mutex, error) {
	ln, err := newLineup(in, path, opts...)
	if err != nil {
		return nil, err
	}
	return &Mutex{ln}, nil
}

// MustNewMutex is [NewMutex] for known-good wiring. It panics where NewMutex returns an error.
func MustNewMutex(in zookeeper.Space, path string, opts ...Option) *Mutex {
	return held.Must(NewMutex(in, path, opts...))
}

// Acquire waits for the lock. If it loses its place in line, for example with the session,
// it takes another one as [zookeeper.Config].Retry allows.
//
// The error wraps driver.ErrLocked if ctx ended while another caller had the lock. It wraps
// driver.ErrUnavailable if ZooKeeper could not be asked. Both also wrap the cause of ctx if ctx
// has ended. The place in line is given up in the background.
func (m *Mutex) Acquire(ctx context.Context) (*Lease, error) {
	return m.ln.acquire(ctx, exclusive, first)
}

// TryAcquire returns the lock if it is free, and an error that wraps driver.ErrLocked if not. If
// this client is giving the lock back at that moment, TryAcquire waits for it.
//
// The error wraps driver.ErrUnavailable if ZooKeeper could not be asked. It wraps
// driver.ErrLeaseLost if the trust in the session ran out meanwhile, for example in a machine
// that was suspended. With any of these errors no lock was taken.
func (m *Mutex) TryAcquire(ctx context.Context) (*Lease, error) {
	return m.ln.tryAcquire(ctx, exclusive, first)
}

// exclusive is the role of places in the line of a mutex.
const exclusive = "lock"

// Participants lists the holder first and then the waiters in the order of their turns. The
// list is a snapshot, and some of it is older than the rest. It shows every place
// taken before the call and not given up since. An empty list is no error. A long line costs
// many reads.
//
// The first participant is the holder for the servers. For at most a session time-out it may
// not know yet, or be gone already.
//
// The error wraps driver.ErrUnavailable, and the cause of ctx if ctx has ended.
func (m *Mutex) Participants(ctx context.Context) ([]Participant, error) {
	return m.ln.participants(ctx, first, wholeLine)
}
