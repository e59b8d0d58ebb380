package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
)

// A mutex goes from a place to the next one of the same session without waiting
// for the servers to delete the first. That is as safe as waiting:
//
//   - Nobody is between the two, and nobody can come between them: the line as
//     the next one saw it, after its own place was taken, has them side by side,
//     and no place is ever taken in front of another.
//   - Nobody is before the first: it had its turn at the head of the line.
//   - Nobody else is told. For all others the first is in line until it is
//     deleted, and after that the next one is at the head. The delete goes on
//     until it has happened or the session is over, and with it both places.
//
// What is left is somebody who deletes the next one's znode by hand while it
// waits: so it is read before the lock is believed in, as everywhere.

// neighbour returns the slot of the place right before that of l, where both are
// of a mutex and of this session; else nil.
func (s *session) neighbour(l *Lease, all []position, behind int) *slot {
	before := all[behind]
	if l.place.role != exclusive || before.role != exclusive || behind+1 >= len(all) || !l.place.is(all[behind+1]) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.slots[l.place.line.path+"/"+before.name]
}

// awaitHandOver waits for the place right before that of l. handed says that it
// is the turn of l; if not, the line has to be looked at again.
func (s *session) awaitHandOver(ctx context.Context, l *Lease, before *slot) (handed bool, err error) {
	select {
	case <-before.passed:
	case <-before.freed:
		return false, nil
	case <-l.done:
		return false, l.over()
	case <-ctx.Done():
		return false, s.notYet(ctx, l, nil)
	}
	n, err := within(ctx, s, func() (node, error) { return s.mustGet(l.slot.path) })
	if err != nil {
		return false, s.notYet(ctx, l, err)
	}
	if !n.exists || n.czxid != l.czxid {
		s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
		return false, l.over()
	}
	return true, s.take(l, true, false)
}

// pass hands over what l has held, if it was at the head of a line. Needs
// session.mu.
func (l *Lease) pass() {
	if l.place != nil && l.place.head {
		close(l.slot.passed)
	}
}
