package recipes

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// RWMutex is a fair lock that readers share and a writer has alone. It is not reentrant. It is
// safe for concurrent use. RWMutexes of one path are one lock, in this process and in others.
//
// Readers and writers wait in one line, as in the recipe for shared locks of ZooKeeper's
// documentation. A reader waits for the last writer before it. A writer waits for the place right
// before it. So no caller starves, readers between two writers share the lock, and a change wakes
// only the callers that it may concern.
//
// A fence is greater than those of all places before it and smaller than those of all places
// after it. So a writer's fence is greater than that of any reader or writer before it. Readers
// that share the lock have different fences and work in any order. A resource may refuse a reader
// whose fence is below the greatest *writer's* that it has seen. It must not compare readers with
// each other.
type RWMutex struct{ ln *lineup }

// NewRWMutex returns the read-write lock on an absolute path below the chroot. Missing parents
// are made. The servers remove the path some time after its last use. The error is that of [NewMutex].
func NewRWMutex(in zookeeper.Space, path string) (*RWMutex, error) {
	ln, err := newLineup(in, path)
	if err != nil {
		return nil, err
	}
	return &RWMutex{ln}, nil
}

// MustNewRWMutex is [NewRWMutex] for known-good wiring. It panics where NewRWMutex returns an error.
func MustNewRWMutex(in zookeeper.Space, path string) *RWMutex {
	return held.Must(NewRWMutex(in, path))
}

// Roles of places in the line of an RWMutex.
const (
	reading = "read"
	writing = "write"
)

// ErrUpgrade is returned by [RWMutex.Upgrade].
var ErrUpgrade = errors.New("zookeeper: a read lock cannot become a write lock: " +
	"two readers that both tried would wait for each other for ever; release it and AcquireWrite")

// AcquireRead waits until no writer is before it in line. Retries and errors are those of
// [Mutex.Acquire].
func (m *RWMutex) AcquireRead(ctx context.Context) (*Lease, error) {
	return m.ln.acquire(ctx, reading, behindWriters)
}

// AcquireWrite waits until no caller is before it in line. Retries and errors are those of
// [Mutex.Acquire].
func (m *RWMutex) AcquireWrite(ctx context.Context) (*Lease, error) {
	return m.ln.acquire(ctx, writing, first)
}

// TryAcquireRead returns a read lock. If a writer has the lock or waits for it, the error wraps
// driver.ErrLocked.
func (m *RWMutex) TryAcquireRead(ctx context.Context) (*Lease, error) {
	return m.ln.tryAcquire(ctx, reading, behindWriters)
}

// TryAcquireWrite returns the write lock. If any caller has the lock or waits for it, the error
// wraps driver.ErrLocked.
func (m *RWMutex) TryAcquireWrite(ctx context.Context) (*Lease, error) {
	return m.ln.tryAcquire(ctx, writing, first)
}

// Upgrade always fails with [ErrUpgrade] and leaves the lease as it is. A caller has to read
// again under the write lock in any case.
func (m *RWMutex) Upgrade(*Lease) error { return fmt.Errorf("%w: %s", ErrUpgrade, m.ln.name) }

// behindWriters is the rule of readers. Each waits for the last writer before it. A place with
// any other role counts as a writer.
func behindWriters(all []line.Position, me int) (turn bool, behind int) {
	for i := me - 1; i >= 0; i-- {
		if all[i].Role != reading {
			return false, i
		}
	}
	return true, 0
}

var (
	errNotWriteLease = errors.New("zookeeper: downgrade: not a write lease of this lock")
	errDowngrading   = errors.New("zookeeper: downgrade: under way already")
)

// Downgrade turns a write lock into a read lock without a gap. No writer gets the lock in
// between, and readers right behind share it from then on. The returned lease has the fence of
// the old one, because the fences of all waiters have to be greater.
//
// The old lease ends as by Release.
//
//   - The error wraps driver.ErrLeaseLost if the lock was lost before or meanwhile. It wraps
//     driver.ErrUnavailable if ctx ended or ZooKeeper could not be asked. In both cases the caller
//     has no lock any more, and the znode is removed in the background.
//   - Any other error is about the lease. It is nil, a read lease, a lease of another lock or
//     Client, or it is being downgraded already. The lease stays as it is.
//
// One transaction deletes the writer's place and creates the reader's with the same number. So
// the position in line stays the same. In other libraries the reader takes a new place, behind
// the writers that wait.
func (m *RWMutex) Downgrade(ctx context.Context, l *Lease) (*Lease, error) {
	if l == nil || l.place.Role != writing || l.place.lineup.path != m.ln.path || l.held.Table().Client != m.ln.c {
		return nil, fmt.Errorf("%w: %s", errNotWriteLease, m.ln.name)
	}
	lease, err := downgrade(ctx, l)
	if errors.Is(err, errDowngrading) {
		return nil, fmt.Errorf("%w: %s", err, m.ln.name)
	}
	if err != nil {
		l.ReleaseInBackground()
		return nil, fmt.Errorf("downgrade: %w", err)
	}
	return lease, nil
}

func downgrade(ctx context.Context, l *Lease) (*Lease, error) {
	t := l.held.Table()
	if err := t.Session.Status.AwaitUp(ctx); err != nil { // the connection may have broken just now
		if over := l.held.Over(); over != nil {
			return nil, over
		}
		return nil, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	}
	from := l.place
	pos, _ := line.Parse(reading + strings.TrimPrefix(from.Name, writing))
	to := &place{lineup: from.lineup, data: from.data, Position: pos}
	// No other znode has this name, because no other place had the old one, and each is
	// downgraded once at most.
	cl, err := t.Succeed(l.held, to.path())
	switch {
	case err != nil:
		return nil, err
	case cl == nil:
		return nil, errDowngrading
	}
	lease, err := cl.Acquire(ctx, held.Znode{
		Make:   func(a *held.Attempt) (string, int64, error) { return exchange(a, l, to) },
		Delete: to.deletion, Tag: to, Fence: func(int64) driver.Fence { return l.Fence() },
	})
	switch {
	case err != nil && t.Session.Status.Err() != nil:
		return nil, fmt.Errorf("%w: %w", driver.ErrLeaseLost, t.Session.Status.Err())
	case err != nil:
		return nil, err
	}
	return &Lease{lease, to}, nil
}

// exchange takes the old lease from its holder and replaces its znode by the new one. If that
// fails it removes the old znode. Then it gives up the old claim, which wakes the waiters of
// this process.
func exchange(a *held.Attempt, l *Lease, to *place) (path string, czxid int64, err error) {
	removed := l.held.Take()
	if removed == nil {
		return "", 0, l.held.Over()
	}
	czxid, err = replace(a, l.place, to)
	var left error
	if err != nil {
		from, was := l.held.Where()
		left = a.Table.Remove(from, was, false)
	}
	removed(left)
	return to.path(), czxid, err
}

// replace goes on until the outcome of the exchange is known. Only its own session touches the
// two znodes. So after a lost reply there is the new one or the old one, unless an operator has
// deleted it. The next try notices that the old one is gone.
func replace(a *held.Attempt, from, to *place) (czxid int64, err error) {
	for {
		if a.Abandoned() {
			return 0, held.ErrAbandoned
		}
		r := a.Table.Session.Writes.Do(&zk.DeleteRequest{Path: from.path(), Version: -1}, a.Table.Client.Ephemeral(to.path(), to.data))
		switch {
		case r.Outcome == session.Applied:
			return r.Zxid, nil
		case r.RefusedBy(zk.ErrNoNode):
			return 0, fmt.Errorf("%w: its znode is gone", driver.ErrLeaseLost)
		case r.Outcome == session.Refused:
			return 0, fmt.Errorf("%w: %w", driver.ErrUnavailable, r.Err)
		case r.Outcome == session.Unknown:
			if n, err := a.Table.Session.Reads.Decide(to.path(), session.OfNode); err == nil && n.Exists {
				return n.Czxid, nil
			}
		}
		if err := a.Table.Session.Status.Retry(); err != nil {
			return 0, fmt.Errorf("%w: %w", driver.ErrLeaseLost, err)
		}
	}
}

// Roles of an RWMutex's participants.
const (
	RoleRead  = reading
	RoleWrite = writing
)

// Participants lists the readers and writers in line, in the order in which they asked. The
// first ones have the lock. See [Mutex.Participants].
func (m *RWMutex) Participants(ctx context.Context) ([]Participant, error) {
	return m.ln.participants(ctx, func(all []line.Position, me int) (turn bool, behind int) {
		if all[me].Role == reading {
			return behindWriters(all, me)
		}
		return first(all, me)
	}, wholeLine)
}
