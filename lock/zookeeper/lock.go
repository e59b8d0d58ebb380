package zookeeper

import (
	"context"
	"fmt"
	"path"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// lock makes and deletes the znode of one attempt at the lock of a key.
//
// The servers create a znode only if none is there, so of several owners one gets the lock. The
// znode is ephemeral, so it goes with its session. The session's claim of the path keeps other
// attempts of this process away, from before the create until the znode is known to be gone.
type lock struct {
	s     *locks
	path  string     // of the key
	owner held.Owner // the data of the znode
	marks marks
}

// marks is all that a lock asks of the durable markers. The type marker implements it. As long as
// the key has no marker and its lease leaves none, the place is the path of the key, and the other
// methods change nothing and agree.
type marks interface {
	// place is the path for the next create of the lock's znode.
	place() string

	// follow is called when a create at the place was refused or not answered. If the create may
	// have met a znode, n is what was found there. moved says that the lock has another place now.
	// follow fails if n is neither a lock nor a marker.
	follow(r session.Result, n session.Decided) (moved bool, err error)

	// confirm is called when the znode is there. With false the znode has been deleted by hand.
	confirm() (ok bool, err error)

	// leave returns the operations for the transaction that deletes the lock. refused is the
	// result, if the servers have refused them already. ok is false if there are no other ones.
	leave(refused *session.Result) (ops []any, ok bool)

	// vanished is called if the znode was gone before the transaction.
	vanished()
}

// acquire takes the lock of a key. The caller has claimed the path of the key.
func acquire(ctx context.Context, cl *held.Claim, m *marker) (*Lease, error) {
	k := &lock{s: m.s, path: m.path, owner: m.owner, marks: m}
	_, there := k.s.made.LoadOrStore(path.Base(path.Dir(k.path)), true)
	l, err := cl.Acquire(ctx, held.Znode{
		Make:   func(a *held.Attempt) (string, int64, error) { return k.make(a, !there) },
		Shared: true, Lazy: true, Delete: k.deletion, Vanished: k.marks.vanished,
	})
	if err != nil {
		return nil, err
	}
	return &Lease{l, m}, nil
}

// make makes the znode, and discards it if the marker above it cannot be read.
func (k *lock) make(a *held.Attempt, withParent bool) (at string, czxid int64, err error) {
	for range held.MaxTries {
		if at, czxid, err = k.create(a, withParent); err != nil {
			return "", 0, err
		}
		ok, err := k.marks.confirm()
		switch {
		case ok:
			return at, czxid, nil
		case err == nil:
			continue
		}
		if gone := k.s.table.Remove(at, czxid, true); gone != nil {
			k.s.log.Warn("zookeeper: unusable lock left to the end of its session", "path", at, "error", gone)
		}
		return "", 0, unavailable(err)
	}
	return "", 0, errChanging
}

func unavailable(err error) error { return fmt.Errorf("%w: acquire: %w", driver.ErrUnavailable, err) }

// errChanging ends an attempt that met another state of the lock at each try.
var errChanging = fmt.Errorf("%w: the lock changed during %d tries", driver.ErrLocked, held.MaxTries)

// create sends the create until its outcome is known. After a lost reply the znode may be there or
// not, and a deciding read tells. It shows every earlier request of the session, so a znode that it
// does not show will not come any more. With withParent the first transaction makes the parent, too.
func (k *lock) create(a *held.Attempt, withParent bool) (at string, czxid int64, err error) {
	s := k.s
	var r session.Result
	for try := range held.MaxTries {
		if a.Abandoned() {
			return "", 0, held.ErrAbandoned
		}
		at = k.marks.place()
		ops := []any{s.table.Client.Ephemeral(at, k.owner.Encode())}
		if try == 0 && withParent {
			ops = []any{s.table.Client.Persistent(held.Above(k.path), nil), ops[0]}
		}
		r = s.session.Writes.Do(ops...)
		switch {
		case r.Outcome == session.Applied:
			return at, r.Zxid, nil
		case try == 0 && withParent && r.Outcome == session.Refused:
			continue // the parent is there by now, or this client may not make it
		}
		var n session.Decided
		met := r.Outcome == session.Unknown || r.RefusedBy(zk.ErrNodeExists)
		if met {
			if n, err = s.session.Reads.Decide(at, session.OfNode); err != nil {
				return "", 0, unavailable(err)
			}
		}
		moved, err := k.marks.follow(r, n)
		switch {
		case err != nil:
			return "", 0, unavailable(err)
		case moved:
			continue
		case r.RefusedBy(zk.ErrNoNode):
			if err := s.table.Parents.EnsureParents(at); err != nil {
				return "", 0, unavailable(err)
			}
			continue
		case !met:
			return "", 0, unavailable(r.Err)
		case !n.Exists:
			continue
		case n.Session != s.session.Status.ID():
			return "", 0, fmt.Errorf("%w: by %v", driver.ErrLocked, held.ParseOwner(n.Data))
		case held.ParseOwner(n.Data).Same(k.owner):
			return at, n.Czxid, nil
		}
		// The znode is of this session. But the session has only one claim of the path,
		// and the claim is ours. So the znode is an orphan.
		s.log.Warn("zookeeper: removing an orphan", "path", at, "czxid", n.Czxid)
		if err := s.table.Remove(at, n.Czxid, false); err != nil {
			return "", 0, unavailable(err)
		}
	}
	if r.Outcome == session.Unknown { // no other owner was seen
		return "", 0, unavailable(fmt.Errorf("no certain answer %d times, the last: %w", held.MaxTries, r.Err))
	}
	return "", 0, errChanging
}

// deletion returns the transaction that deletes the lock. Package held sends it, and reads the znode
// before that if another owner's could be there.
func (k *lock) deletion(l *held.Lease, refused *session.Result) []any {
	more, ok := k.marks.leave(refused)
	if !ok {
		return nil
	}
	at, _ := l.Where()
	return append([]any{&zk.DeleteRequest{Path: at, Version: -1}}, more...)
}
