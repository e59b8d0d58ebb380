package zookeeper

import (
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// createLock sends the create of a plain lock until it is known what became of
// it, and returns the czxid of the znode that it made. Which that is depends on
// what is at the key's path, and that may change at any time before:
//
//	nothing            the znode itself
//	an ephemeral one   none: somebody holds the lock
//	a marker           its child, which only one can hold as well
//	anything else      none: an error
//
// The three cannot be mixed up. An ephemeral znode has no children, so that the
// child's create proves that there is no ephemeral znode at the path, and one
// with a child cannot be deleted, so that while the child is there only its
// holder changes the marker.
func (a *attempt) createLock(o owner) (czxid int64, err error) {
	s, sl := a.s, a.slot
	var data []byte
	if a.first != nil {
		data = a.first.Data
	} else {
		data = o.encode()
	}
	var r session.Result
	for range maxTries {
		if a.early == nil && a.gone() {
			return 0, idem.ErrUnavailable // nobody reads this
		}
		at := sl.znode()
		r = a.send(s.lockAt(at, data))
		switch {
		case r.Outcome == session.Applied:
			if found, err := a.readMarker(r.Zxid); found || err != nil {
				return r.Zxid, err
			}
			continue
		case r.Outcome == session.Ended, r.Outcome == session.Unsent:
			return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, r.Err)
		case sl.marked && (r.RefusedBy(zk.ErrNoNode) || r.RefusedBy(zk.ErrNoChildrenForEphemerals)):
			sl.marked = false
			continue
		case r.RefusedBy(zk.ErrNoNode):
			if err := s.parentAfter(r.Err, at); err != nil {
				return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, err)
			}
			continue
		case r.Outcome != session.Unknown && !r.RefusedBy(zk.ErrNodeExists):
			return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, r.Err)
		}
		// Either the znode was there before, or the reply was lost: what is there
		// now decides.
		n, err := s.Decide(at, session.OfNode)
		switch {
		case err != nil:
			return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, err)
		case !n.Exists:
			continue
		case n.Session == 0:
			if sl.marked || parseMarker(n.Data) == nil {
				return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, notMarker(at))
			}
			sl.marked = true
			continue
		case n.Session != s.ID():
			return 0, fmt.Errorf("%w: by %v", idem.ErrLocked, parseOwner(n.Data))
		case parseOwner(n.Data).same(o):
			if found, err := a.readMarker(n.Czxid); found || err != nil {
				return n.Czxid, err
			}
			continue
		}
		// Of this session, but this session has only one slot for the path and
		// that is ours: an orphan.
		if err := s.removeOrphan(at, n); err != nil {
			return 0, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, err)
		}
	}
	if r.Outcome == session.Unknown { // nobody was seen to hold it
		return 0, fmt.Errorf("%w: acquire: no certain answer %d times, the last: %w", idem.ErrUnavailable, maxTries, r.Err)
	}
	return 0, fmt.Errorf("%w: changed under our hands %d times", idem.ErrLocked, maxTries)
}

// lockAt is the create of a plain lock.
func (s *locks) lockAt(path string, data []byte) *zk.CreateRequest {
	return &zk.CreateRequest{Path: path, Data: data, Acl: s.cfg.ACL, Flags: zk.FlagEphemeral}
}

// readMarker reads the marker above a lock that was just made. The read decides, and
// is sent when the create is known to have been applied. So it shows what was there
// then, or later, and only the holder of the lock changes that. found is false where
// marker and lock have gone, which somebody has done by hand. With an error the lock
// has gone too, or will with its session.
func (a *attempt) readMarker(czxid int64) (found bool, err error) {
	s, sl := a.s, a.slot
	if !sl.marked {
		return true, nil
	}
	n, err := s.Decide(sl.path, session.OfNode)
	if err == nil {
		if !n.Exists || n.Session != 0 {
			return false, nil
		}
		a.marks.found, a.marks.czxid, a.marks.version = parseMarker(n.Data), n.Czxid, n.Version
		if a.marks.found != nil {
			a.marks.there = n.Data
			return true, nil
		}
		err = notMarker(sl.path)
	}
	if gone := s.remove(sl.znode(), czxid, true); gone != nil {
		s.log.Warn("zookeeper: unusable lock left to the end of its session", "path", sl.znode(), "error", gone)
	}
	return false, fmt.Errorf("%w: acquire: %w", idem.ErrUnavailable, err)
}
