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
// waits: so it is read before the lock is believed in, as everywhere. That is spared
// those who were right behind a place of their session when it came to the head of
// the line, and were seen there over the present connection: a lock that is held for a
// moment goes through all of them at once, and what they write shares Multis. It is a
// second at most since then, in which nobody deletes a znode by hand (see young), nor
// closes the session on the server without this process hearing of it.

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
	s.mu.Lock()
	before.heir = l
	s.mu.Unlock()
	select {
	case <-before.passed:
	case <-before.freed:
		return false, nil
	case <-l.done:
		s.disinherit(before)
		return false, l.over()
	case <-ctx.Done():
		s.disinherit(before)
		return false, s.notYet(ctx, l, nil)
	}
	if s.vouched(l) {
		return true, s.take(l, true, false)
	}
	n, err := within(ctx, s, func() (decided, error) { return s.decide(l.slot.path, ofNode) })
	if err != nil {
		return false, s.notYet(ctx, l, err)
	}
	if !n.exists || n.czxid != l.czxid {
		s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
		return false, l.over()
	}
	return true, s.take(l, true, false)
}

// disinherit says that nobody waits for what a slot stands for any more.
func (s *session) disinherit(before *slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	before.heir = nil
}

// vouch notes of the places behind l, as far as they are of this session, that they
// were seen when l came to the head of its line.
func (s *session) vouch(l *Lease, v *view) {
	if v.sent.IsZero() {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range v.line[1:] {
		sl := s.slots[l.place.line.path+"/"+p.name]
		if sl == nil {
			return
		}
		sl.seen, sl.seenBy = v.sent, s.gen
	}
}

// vouched reports whether that is less than a second ago, and the connection is still
// the same one.
func (s *session) vouched(l *Lease) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.connected && s.gen == l.slot.seenBy && s.cfg.now().Sub(l.slot.seen) < young
}

// pass hands over what l has held, if it was at the head of a line. Needs
// session.mu.
func (l *Lease) pass() {
	if l.place != nil && l.place.head {
		close(l.slot.passed)
	}
}
