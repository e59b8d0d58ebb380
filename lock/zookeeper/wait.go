package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Wait implements [driver.Locker]. The waiters of a process share a watch. Wait may return
// too early, after a reconnect for example. A marker without a lock below it looks free,
// and so does any other persistent znode in the place of the lock.
func (l *Locker) Wait(ctx context.Context, id driver.KeyID) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	s, err := l.c.usable()
	if err != nil {
		return err
	}
	err = s.awaitFree(ctx, l.c.cfg.lockPath(id))
	if err == nil {
		err = s.session.Status.AwaitUp(ctx) // the caller will try to take the lock
	}
	switch {
	case err != nil && ctx.Err() != nil:
		return ctx.Err()
	case err != nil && s.session.Status.Err() == nil: // otherwise the next session may tell
		return fmt.Errorf("%w: wait: %w", driver.ErrUnavailable, err)
	}
	return nil
}

// awaitFree waits for the end of the lock at path, or below the marker at path.
//
// It does not watch a marker. A marker may stay for days, and so would the watch. So the
// first read leaves no watch.
func (s *locks) awaitFree(ctx context.Context, path string) error {
	if cl := s.table.Find(path); cl != nil { // a lock of this process
		return s.session.Status.Await(ctx, cl.Freed())
	}
	n, err := s.session.Reads.DecideFor(ctx, path, session.OfNode)
	if err != nil || !n.Exists {
		return err
	}
	at := path
	if n.Session == 0 {
		at += lockChild
	}
	for {
		watch := s.session.Watches.Of(at, session.OnNode, nil)
		if err := s.session.Status.Await(ctx, watch.Armed()); err != nil {
			return err
		}
		found, err := watch.Found()
		switch {
		case session.Refusal(err):
			return err
		case err == nil && found.Exists && found.Session == 0: // marked meanwhile, or no lock
			at += lockChild
		default:
			return s.session.Status.Await(ctx, watch.Woken()) // at once, if there is no lock
		}
	}
}
