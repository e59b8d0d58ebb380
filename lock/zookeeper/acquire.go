package zookeeper

import (
	"context"
	"fmt"
	"path"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Lease is the lock of a key, held through a session. It is safe for concurrent use.
//
// The token of its Fence is the czxid of the lock's znode as it was when the lock was
// taken. [Lease.MarkBegun] makes the znode anew.
type Lease struct {
	held  *held.Lease
	marks *marks
}

var _ driver.Lease = (*Lease)(nil)

// Fence implements [driver.Lease].
func (l *Lease) Fence() driver.Fence { return l.held.Fence() }

// Done implements [driver.Lease].
func (l *Lease) Done() <-chan struct{} { return l.held.Done() }

// Err implements [driver.Lease]. It reads the lease clock, so it tells of a loss even when Done is
// late, after the machine was suspended.
func (l *Lease) Err() error { return l.held.Err() }

// Check implements [driver.Lease]. It always reads the znode, so it notices one that was deleted by
// hand. While the connection is down it waits for another one, until ctx ends or the lease is over.
func (l *Lease) Check(ctx context.Context) (time.Duration, error) { return l.held.Check(ctx) }

// Release implements [driver.Lease]. The error wraps driver.ErrUnavailable if ctx ended first, or if the
// znode stays until the session is over.
func (l *Lease) Release(ctx context.Context) error { return l.held.Release(ctx) }

// ReleaseInBackground implements [driver.Lease]. [Client.Close] waits for it.
func (l *Lease) ReleaseInBackground() { l.held.ReleaseInBackground() }

// acquire makes the lock of a key. The caller has claimed its path. If the parent of the
// lock is missing, the same transaction makes it.
func (m *marks) acquire(ctx context.Context, cl *held.Claim) (*Lease, error) {
	_, there := m.s.parents.LoadOrStore(path.Base(path.Dir(m.path)), true)
	l, err := cl.Acquire(ctx, held.Znode{
		Make:   func(a *held.Attempt) (string, int64, error) { return m.create(a, !there) },
		Shared: true, Lazy: true, Delete: m.deletion, Vanished: m.vanished,
	})
	if err != nil {
		return nil, err
	}
	return &Lease{l, m}, nil
}

// create sends the create of a lock until its outcome is known. The lock's place depends on
// the znode at the key's path. That znode may change at any time before.
//
//	nothing            the lock is the znode itself
//	an ephemeral znode another owner holds the lock
//	a marker           the lock is its child
//	anything else      an error
//
// The cases exclude each other. An ephemeral znode has no children, so the child's create
// proves that there is no ephemeral znode at the path. A znode with a child cannot be
// deleted. So while the child is there, only its holder changes the marker.
//
// With withParent the first request makes the parent, too.
func (m *marks) create(a *held.Attempt, withParent bool) (path string, czxid int64, err error) {
	fail := func(err error) (string, int64, error) {
		return "", 0, fmt.Errorf("%w: acquire: %w", driver.ErrUnavailable, err)
	}
	s := m.s
	var r session.Result
	for try := range held.MaxTries {
		if a.Abandoned() {
			return "", 0, held.ErrAbandoned
		}
		at := m.at()
		ops := []any{s.Ephemeral(at, m.owner.Encode())}
		if try == 0 && withParent {
			ops = []any{s.Persistent(held.Above(m.path), nil), ops[0]}
		}
		r = s.Write(ops...)
		switch {
		case try == 0 && withParent && r.Outcome == session.Refused:
			continue // the parent is there by now, or this client may not make it
		case r.Outcome == session.Applied:
			if found, err := m.read(r.Zxid); found || err != nil {
				return at, r.Zxid, err
			}
			continue
		case m.marked && (r.RefusedBy(zk.ErrNoNode) || r.RefusedBy(zk.ErrNoChildrenForEphemerals)):
			m.marked = false
			continue
		case r.RefusedBy(zk.ErrNoNode):
			if err := s.EnsureParents(at); err != nil {
				return fail(err)
			}
			continue
		case r.Outcome != session.Unknown && !r.RefusedBy(zk.ErrNodeExists):
			return fail(r.Err)
		}
		// Either the znode was there before, or the reply was lost. A read decides.
		n, err := s.Decide(at, session.OfNode)
		switch {
		case err != nil:
			return fail(err)
		case !n.Exists:
			continue
		case n.Session == 0:
			if m.marked || parseMarker(n.Data) == nil {
				return fail(notMarker(at))
			}
			m.marked = true
			continue
		case n.Session != s.ID():
			return "", 0, fmt.Errorf("%w: by %v", driver.ErrLocked, held.ParseOwner(n.Data))
		case held.ParseOwner(n.Data).Same(m.owner):
			if found, err := m.read(n.Czxid); found || err != nil {
				return at, n.Czxid, err
			}
			continue
		}
		// The znode is of this session. But the session has only one claim of the path,
		// and the claim is ours. So the znode is an orphan.
		s.Log.Warn("zookeeper: removing an orphan", "path", at, "czxid", n.Czxid)
		if err := s.Remove(at, n.Czxid, false); err != nil {
			return fail(err)
		}
	}
	if r.Outcome == session.Unknown { // no other owner was seen
		return fail(fmt.Errorf("no certain answer %d times, the last: %w", held.MaxTries, r.Err))
	}
	return "", 0, fmt.Errorf("%w: the lock changed during %d tries", driver.ErrLocked, held.MaxTries)
}

// read reads the marker above a new lock. It is a deciding read, sent after the create is
// known to be applied. So it shows the marker as it was then or later, and only the holder
// of the lock changes it. found is false if an operator has deleted marker and lock by hand.
// With an error the lock has gone too, or goes with its session.
func (m *marks) read(czxid int64) (found bool, err error) {
	if !m.marked {
		return true, nil
	}
	n, err := m.s.Decide(m.path, session.OfNode)
	if err == nil {
		if !n.Exists || n.Session != 0 {
			return false, nil
		}
		m.found, m.czxid, m.version = parseMarker(n.Data), n.Czxid, n.Version
		if m.found != nil {
			m.there = n.Data
			return true, nil
		}
		err = notMarker(m.path)
	}
	if gone := m.s.Remove(m.at(), czxid, true); gone != nil {
		m.s.Log.Warn("zookeeper: unusable lock left to the end of its session", "path", m.at(), "error", gone)
	}
	return false, fmt.Errorf("%w: acquire: %w", driver.ErrUnavailable, err)
}
