package zookeeper

import (
	"context"
	"errors"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// look judges what is at the path of a key. now is the ensemble's time, of a
// moment ago.
func (r *removal) look(ctx context.Context, s *locks, id idem.KeyID, now int64) error {
	path := r.c.cfg.lockPath(id)
	n, err := session.Within(ctx, s.Session, func() (session.Decided, error) { return s.Decide(path, session.OfNode) })
	switch {
	case errors.Is(err, ErrNotPermitted):
		s.Log.Warn("zookeeper: this znode cannot be looked at", "error", err)
		return nil
	case err != nil:
		return unavailable(ctx, err)
	case !n.Exists, n.Session != 0: // gone, or a lock
		return nil
	}
	m := parseMarker(n.Data)
	if m == nil {
		s.Log.Warn("zookeeper: this znode keeps its key from being locked", "error", notMarker(path))
		return nil
	}
	r.looked.Add(1)
	if n.Children > 0 || now-n.Mtime < r.opts.Retention.Milliseconds() { // locked, or young
		r.kept.Add(1)
		return nil
	}
	if m.State != idem.StateCompleted {
		settled := false
		if r.opts.Settled != nil {
			if settled, err = r.opts.Settled(ctx, id, m); err != nil {
				if ctx.Err() != nil {
					return err
				}
				failed := err
				r.doubt.Store(&failed)
				settled = false
			}
		}
		if !settled {
			r.unknown.Add(1)
			return nil
		}
	}
	removed, err := r.remove(ctx, s, path, n)
	if removed {
		r.removed.Add(1)
	} else {
		r.kept.Add(1)
	}
	return err
}

// remove removes the marker that was judged, if it is still that one and nobody
// holds its key's lock.
//
// A delete that names the version of the data is not enough: a marker may have
// been removed meanwhile, and its path hold a lock or another marker, whose
// version is the same, namely 0. Hence the lock, under which it is compared
// with what was judged. To ask for it below the marker first, rather than at the
// path, spares a conflict that would cost other requests of the same transaction
// a second one.
func (r *removal) remove(ctx context.Context, s *locks, path string, judged session.Decided) (bool, error) {
	mine, _, err := s.Claim(path)
	switch {
	case err != nil:
		return false, unavailable(ctx, err)
	case mine == nil: // another goroutine of this process is at it
		return false, nil
	}
	m := &marks{s: s, path: path, on: true, owner: s.Owned("removes the marker"), marked: true}
	lease, err := m.make(ctx, mine, true)
	switch {
	case errors.Is(err, idem.ErrLocked):
		return false, nil
	case errors.Is(err, ErrNotPermitted): // one that others made must not end every pass
		s.Log.Warn("zookeeper: this marker cannot be removed", "error", err)
		return false, nil
	case err != nil:
		return false, unavailable(ctx, err)
	}
	same := lease.marks.czxid == judged.Czxid && lease.marks.version == judged.Version
	if same {
		lease.MarkOnRelease(nil)
	}
	if err := lease.Release(ctx); err != nil {
		return false, unavailable(ctx, err)
	}
	return same, nil
}
