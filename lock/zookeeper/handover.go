package zookeeper

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// A mutex goes from a place to the next place of the same session without waiting
// for the servers to delete the first one. This is as safe as waiting:
//
//   - No other place is between the two, and none can come between them. The waiter
//     saw the two side by side in the line after its own place was taken, and the
//     servers never put a place in front of another.
//   - No place is before the first one. It was at the head of the line when its turn
//     came.
//   - The other clients learn nothing of it. For them the first place is in line until
//     it is deleted, and then the next one is at the head. The delete goes on until it
//     has been applied or the session is over, and the session takes both places along.
//
// An operator may have deleted the waiter's znode by hand. So the waiter reads it once
// more before it believes in the lock.

// neighbour returns the lease of the place right before that of l, if both places
// belong to a mutex and to this session.
func (s *locks) neighbour(l *Lease, all []position, behind int) *Lease {
	before := all[behind]
	if l.place.role != exclusive || before.role != exclusive || behind+1 >= len(all) || !l.place.is(all[behind+1]) {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	sl := s.slots[l.place.line.path+"/"+before.name]
	if sl == nil || sl.lease == nil {
		return nil
	}
	sl.lease.place.heir = l
	return sl.lease
}

// awaitHandOver waits until the neighbour's holder lets go of its place. It returns
// true if the lock went to l. If not, the waiter has to look at the line again.
func (s *locks) awaitHandOver(ctx context.Context, l, before *Lease) (handed bool, err error) {
	err = s.awaitChange(ctx, l, before.done)
	s.mu.Lock()
	passed := err == nil && before.place.head && before.failure() == nil
	if !passed {
		before.place.heir = nil
	}
	s.mu.Unlock()
	switch {
	case err != nil:
		return false, err
	case !passed:
		return false, s.awaitChange(ctx, l, before.gone)
	}
	n, err := session.Within(ctx, s.Session, func() (session.Decided, error) { return s.Decide(l.slot.path, session.OfNode) })
	if err != nil {
		return false, s.notYet(ctx, l, err)
	}
	if !n.Exists || n.Czxid != l.czxid {
		s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
		return false, l.over()
	}
	return true, s.take(l, true, false)
}

// mayPassOn says that the lease has an heir. A request to let go that comes to the
// place from now on is for the heir. Needs session.mu.
func (l *Lease) mayPassOn() bool {
	if l.place == nil || l.place.heir == nil || !l.place.head {
		return false
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	return !l.asked
}

// passOnRequest gives a request that came to a place which is being given back to the
// lease that has inherited the lock.
func (s *locks) passOnRequest(l *Lease) {
	s.mu.Lock()
	next := l.place.heir
	for next != nil && next.over() != nil {
		next = next.place.heir
	}
	s.mu.Unlock()
	if next != nil {
		next.askedFor()
	}
}
