package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// young is for how long a lock may be deleted without looking at it first. A
// delete names a path, so it would also remove a later owner's znode. Within
// the session only this package removes the znode, and the slot keeps it from
// doing so twice; the session's end is caught by the pin. What is left is an
// operator who deletes the znode by hand, after which somebody else takes the
// lock. Nobody does that within a second of its being taken; every request that
// is shorter saves a round trip.
const young = time.Second

// Release implements [idem.Lease].
func (l *Lease) Release(ctx context.Context) error {
	l.ReleaseInBackground()
	select {
	case <-l.gone:
		return l.goneErr
	case <-ctx.Done():
		return fmt.Errorf("%w: release goes on in the background: %w", idem.ErrUnavailable, context.Cause(ctx))
	}
}

// ReleaseInBackground implements [idem.Lease]. Close waits for it.
func (l *Lease) ReleaseInBackground() {
	s := l.s
	s.mu.Lock()
	defer s.mu.Unlock()
	l.finish(nil)
	s.beginRelease(l)
}

// beginRelease starts removing the znode of a lease that has ended, once.
// Needs mu.
func (s *locks) beginRelease(l *Lease) {
	if l.slot.phase != holding {
		return
	}
	l.slot.phase = releasing
	s.client.keeper.Background.Add()
	m := l.marking() // asked once: it may end at any moment
	switch {
	case m != nil: // no write for a path while an earlier one is unsettled
		s.further(func() { <-m.done; l.freed(l.remove) })
	case l.simple():
		l.ask()
	default:
		s.further(func() { l.freed(l.remove) })
	}
}

// freed makes the znode go and tells that it has.
func (l *Lease) freed(remove func() error) {
	defer l.s.client.keeper.Background.Done()
	l.goneErr = remove()
	l.s.free(l.slot)
	close(l.gone)
}

// remove deletes the lease's znode.
func (l *Lease) remove() error {
	if l.place != nil {
		return l.place.remove(l)
	}
	path, czxid := l.at()
	return l.s.remove(path, czxid, l.suspect(), l.legacy()...)
}

// suspect says that the znode is to be looked at before it is deleted.
func (l *Lease) suspect() bool { return l.failure() != nil || l.s.cfg.now().Sub(l.taken) > young }

// simple says that the znode can go with one delete, as far as is known. Needs
// session.mu.
func (l *Lease) simple() bool {
	if l.place != nil {
		return !l.place.last()
	}
	return !l.suspect() && len(l.legacy()) == 0
}

// ask sends the delete without a goroutine that waits for it: one begins only
// where the answer is not the one expected. Needs session.mu.
func (l *Lease) ask() {
	s := l.s
	sent := s.Ask(session.Request{Ops: []any{l.deletion()}}, func(r session.Result) {
		remove := func() error { return l.removeOn(r) }
		switch r.Outcome {
		case session.Applied, session.Ended:
			l.freed(remove)
		default:
			s.further(func() { l.freed(remove) })
		}
	})
	if !sent { // the session is over
		go l.freed(l.remove)
	}
}

// deletionOf is the delete of the znode at path, which a lease gives back where l is
// not nil.
func (s *locks) deletionOf(l *Lease, path string) *zk.DeleteRequest {
	if l == nil {
		return &zk.DeleteRequest{Path: path, Version: -1}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return l.deletion()
}

// deletion is the delete of the lease's znode. It fails where that carries a request
// to let go which is for another lease by now; see removeOn. Needs session.mu.
func (l *Lease) deletion() *zk.DeleteRequest {
	version := int32(-1)
	if l.mayPassOn() {
		version = unrevoked
	}
	path, _ := l.at()
	return &zk.DeleteRequest{Path: path, Version: version}
}

// removeOn makes the znode go after the answer to its deletion.
func (l *Lease) removeOn(r session.Result) error {
	path, czxid := l.at()
	return l.s.removeOn(l, &r, path, czxid, false)
}

// remove deletes the znode at path that has this czxid, and makes its legacy,
// up to one write that is applied together with the delete or not at all. It
// returns nil when that znode is known to be gone, and an error only when the
// session is over first, with whose end the znode goes. look makes it read the
// znode before the first delete.
//
// A delete whose reply was lost is never simply sent again: it may have been
// applied, and another owner may have come since. As long as the znode with this
// czxid is there, neither it nor the legacy was applied; once it is not, there
// is nothing that may be done any more.
func (s *locks) remove(path string, czxid int64, look bool, legacy ...any) error {
	return s.removeOn(nil, nil, path, czxid, look, legacy...)
}

// removeOrphan is remove for a znode of this session that nothing stands for any
// more, as it was found.
func (s *locks) removeOrphan(path string, n session.Decided) error {
	s.log.Warn("zookeeper: removing an orphan", "path", path, "czxid", n.Czxid)
	return s.remove(path, n.Czxid, false)
}

// removeOn is remove, with the answer to the first delete where that was sent
// already. It need not wait for anything where that was applied, or the session is
// over. l is the lease that gives the znode back, or nil. Every delete for it fails
// where the znode carries a request to let go, which is then passed on first. So a
// request is not lost with the reply to a delete.
func (s *locks) removeOn(l *Lease, first *session.Result, path string, czxid int64, look bool, legacy ...any) error {
	doubt := false // a write may have been applied
	for {
		if look && first == nil {
			n, err := s.Decide(path, session.OfNode)
			if err != nil {
				return s.atEnd(err)
			}
			if !n.Exists || n.Czxid != czxid {
				s.vanished(path, !doubt && len(legacy) > 0)
				return nil
			}
		}
		var r session.Result
		if first != nil {
			r, first = *first, nil
		} else {
			r = s.Write(append([]any{s.deletionOf(l, path)}, legacy...)...)
		}
		switch {
		case r.Outcome == session.Applied:
			return nil
		case r.RefusedBy(zk.ErrNoNode):
			s.vanished(path, !doubt && len(legacy) > 0)
			return nil
		case r.Outcome == session.Ended:
			return s.atEnd(r.Err)
		case l != nil && r.RefusedBy(zk.ErrBadVersion):
			s.passOnRequest(l)
			l = nil
			continue
		case r.Outcome == session.Unknown:
			doubt = true
		case r.RefusedAt(1, zk.ErrNotEmpty):
			s.log.Error("zookeeper: marker cannot be removed, somebody made znodes below it", "path", path)
			legacy = nil
		case r.Outcome == session.Refused:
			s.log.Error("zookeeper: lock cannot be removed, trying again", "path", path, "error", r.Err)
			select {
			case <-time.After(time.Second):
			case <-s.Over():
			}
		}
		if err := s.Retry(); err != nil {
			return s.atEnd(err)
		}
		look = true
	}
}

// vanished tells the operator of a lock that somebody deleted by hand, where
// that kept a marker from being left, replaced or removed.
func (s *locks) vanished(path string, harm bool) {
	if harm {
		s.log.Warn("zookeeper: lock vanished before its release, the key's marker stays as it is", "path", path)
	}
}

// atEnd says what the end of the session means for a znode of it: an expired
// session took it along, and one without its member is being closed. In all
// other cases it stays until the servers notice that the session is over.
func (s *locks) atEnd(err error) error {
	if why := s.Err(); errors.Is(why, session.ErrExpired) || errors.Is(why, session.ErrNoMember) {
		return nil
	}
	return fmt.Errorf("%w: left to the end of the session: %w", idem.ErrUnavailable, err)
}
