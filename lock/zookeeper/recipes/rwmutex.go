package recipes

import (
	"context"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
)

// RWMutex is a fair lock that readers share and a writer has alone. It is not
// reentrant. It is safe for concurrent use; RWMutexes of one path, in this
// process or any other, are one lock.
//
// Readers and writers queue up in one line (the recipe for shared locks of
// ZooKeeper's documentation). A reader waits for the last writer before it and
// a writer for whoever is right before it, each for that one place alone: so
// nobody is starved, readers between two writers share the lock, and no change
// wakes more than those whom it may concern.
//
// The fence of a lease is that of its place in line, as ever: greater than those
// of all places before, smaller than those of all behind. A writer's therefore
// is greater than that of any reader or writer before it. Readers that share the
// lock have different ones and work in any order, so a resource may refuse a
// reader whose fence is below the greatest *writer's* it has seen, but must not
// compare readers with each other.
type RWMutex struct{ ln *lineup }

// NewRWMutex returns the read-write lock on an absolute path below the chroot. Its
// parents are made when they are missing, and the path itself goes some time
// after its last use.
func NewRWMutex(in zookeeper.Root, path string) *RWMutex { return &RWMutex{newLineup(in, path)} }

// Roles of places in the line of an RWMutex.
const (
	reading = "read"
	writing = "write"
)

// ErrUpgrade is what [RWMutex.Upgrade] returns.
var ErrUpgrade = errors.New("zookeeper: a read lock cannot become a write lock: " +
	"two readers that both tried would wait for each other for ever; release it and AcquireWrite")

// AcquireRead waits until no writer is before it in line. Retries and errors are
// those of [Mutex.Acquire].
func (m *RWMutex) AcquireRead(ctx context.Context) (*Lease, error) {
	return m.ln.acquire(ctx, reading, behindWriters)
}

// AcquireWrite waits until nobody is before it in line. Retries and errors are
// those of [Mutex.Acquire].
func (m *RWMutex) AcquireWrite(ctx context.Context) (*Lease, error) {
	return m.ln.acquire(ctx, writing, first)
}

// TryAcquireRead returns a read lock if no writer has or awaits the lock, and an
// error that wraps idem.ErrLocked if one does.
func (m *RWMutex) TryAcquireRead(ctx context.Context) (*Lease, error) {
	return m.ln.tryAcquire(ctx, reading, behindWriters)
}

// TryAcquireWrite returns the write lock if nobody has or awaits the lock, and
// an error that wraps idem.ErrLocked if anybody does.
func (m *RWMutex) TryAcquireWrite(ctx context.Context) (*Lease, error) {
	return m.ln.tryAcquire(ctx, writing, first)
}

// Upgrade always fails, with [ErrUpgrade], and leaves the lease as it is. What
// was read has to be read again under the write lock in any case.
func (m *RWMutex) Upgrade(*Lease) error { return fmt.Errorf("%w: %s", ErrUpgrade, m.ln.name) }

// behindWriters is the rule of readers: each waits for the last writer before
// it. Whoever is no reader, whatever it may be, counts as a writer.
func behindWriters(all []line.Position, me int) (turn bool, behind int) {
	for i := me - 1; i >= 0; i-- {
		if all[i].Role != reading {
			return false, i
		}
	}
	return true, 0
}
