package held

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Young is for how long a znode may be deleted without a read before. A delete names a path, so
// it could remove a later owner's znode. Within the session the claim keeps the package from
// deleting the znode twice, and the pin covers the end of the session. An operator may still
// delete the znode by hand, and another owner may then take the lock. No operator does so
// within a second. So every shorter request saves a round trip.
const Young = time.Second

// refusalPause is the pause before a read or a delete that the servers refused is sent again. They
// refuse for a reason that an operator mends, such as an ACL.
const refusalPause = time.Second

// Release implements [driver.Lease].
func (l *Lease) Release(ctx context.Context) error {
	l.release(false)
	select {
	case <-l.gone:
		return l.goneErr
	case <-ctx.Done():
		return fmt.Errorf("%w: release goes on in the background: %w", driver.ErrUnavailable, context.Cause(ctx))
	}
}

// ReleaseInBackground implements [driver.Lease]. Close waits for it. If the znode is lazy, its
// deletion may wait some milliseconds for other writes.
func (l *Lease) ReleaseInBackground() { l.release(l.znode.Lazy) }

func (l *Lease) release(lazy bool) {
	l.t.mu.Lock()
	defer l.t.mu.Unlock()
	l.finish(nil)
	l.beginRelease(lazy)
}

// finish ends the lease. The session does that by ending.end alone.
func (l *Lease) finish(err error) bool {
	ended := l.ending.end(err)
	if ended {
		l.hold.End()
	}
	return ended
}

// beginRelease starts removing the znode of a lease that has ended, once. Needs Table.mu.
func (l *Lease) beginRelease(lazy bool) {
	if l.claim.phase != holding {
		return
	}
	l.claim.phase = releasing
	l.t.Client.Keeper.Background.Add()
	settled, look := l.location.settled(), l.suspect()
	l.t.Further(func() {
		select {
		case <-settled:
		default: // a write for the path is not settled yet
			<-settled
			look = l.znode.Shared
		}
		rm := removal{look: look, lazy: lazy, vanished: l.znode.Vanished}
		rm.path, rm.czxid = l.Where()
		rm.del = func(refused *session.Result) []any { return l.znode.Delete(l, refused) }
		l.removed(l.t.remove(rm))
	})
}

// suspect reports whether the znode has to be read before it is deleted.
func (l *Lease) suspect() bool {
	return l.znode.Shared && (l.ending.loss() != nil || l.t.Client.Now().Sub(l.taken) > Young)
}

// removed ends the claim. The znode is gone, or the session is over.
func (l *Lease) removed(err error) {
	defer l.t.Client.Keeper.Background.Done()
	l.goneErr = err
	l.claim.Free()
	close(l.gone)
}

// Remove deletes the znode with this path and czxid. See remove.
func (t *Table) Remove(path string, czxid int64, look bool) error {
	del := func(refused *session.Result) []any { return deletion(path, refused) }
	return t.remove(removal{path: path, czxid: czxid, look: look, del: del, vanished: func() {}})
}

// removal is how a znode is removed.
type removal struct {
	path     string
	czxid    int64
	look     bool                                // read the znode before the first delete
	lazy     bool                                // the delete may wait a moment, if no read comes before it
	del      func(refused *session.Result) []any // see Znode.Delete
	vanished func()
}

// deletion deletes a znode alone.
func deletion(path string, refused *session.Result) []any {
	if refused != nil {
		return nil
	}
	return []any{&zk.DeleteRequest{Path: path, Version: -1}}
}

// remove deletes a znode, in one transaction with the other operations of del. It returns nil
// when the znode is known to be gone. It fails only if the session is over first. Then the
// znode goes with the session. While the servers refuse the read or the delete, it tries again.
//
// After a lost reply the delete is never simply sent again. It may have been applied, and
// another owner may have come since. As long as the znode with this czxid is there, the
// transaction was not applied. Once the znode is gone, nothing more may be done.
func (t *Table) remove(rm removal) error {
	doubt := false // a write may have been applied
	gone := func() error {
		if !doubt {
			rm.vanished()
		}
		return nil
	}
	refused := func(err error) {
		t.Client.Log.Error("zookeeper: lock cannot be removed, trying again", "path", rm.path, "error", err)
		select {
		case <-time.After(refusalPause):
		case <-t.Session.Status.Over():
		}
	}
	var ops []any
	for {
		if rm.look {
			n, err := t.Session.Reads.Decide(rm.path, session.OfNode)
			switch {
			case err != nil && t.Session.Status.Err() == nil:
				refused(err)
				continue
			case err != nil:
				return t.atEnd(err)
			case !n.Exists || n.Czxid != rm.czxid:
				return gone()
			}
		}
		if ops == nil {
			ops = rm.del(nil)
		}
		r := t.Session.Writes.DoRequest(session.Request{Ops: ops, Lazy: rm.lazy && !rm.look})
		switch {
		case r.Outcome == session.Applied:
			return nil
		case r.RefusedBy(zk.ErrNoNode):
			return gone()
		case r.Outcome == session.Ended:
			return t.atEnd(r.Err)
		case r.Outcome == session.Unknown:
			doubt = true
		case r.Outcome == session.Refused:
			if other := rm.del(&r); other != nil {
				ops = other
				continue
			}
			refused(r.Err)
		}
		if err := t.Session.Status.Retry(); err != nil {
			return t.atEnd(err)
		}
		rm.look = true
	}
}

// atEnd translates the end of the session for one of its znodes. An expired session took the
// znode along. A session without its member is being closed. In all other cases the znode stays
// until the servers notice the end of the session.
func (t *Table) atEnd(err error) error {
	if why := t.Session.Status.Err(); errors.Is(why, session.ErrExpired) || errors.Is(why, session.ErrNoMember) {
		return nil
	}
	return fmt.Errorf("%w: left to the end of the session: %w", driver.ErrUnavailable, err)
}
