package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// A holder hands a mutex to the next waiter of the same session without waiting for the servers
// to delete its place. This is as safe as waiting, for three reasons.
//
//   - No other place is or ever comes between the two. The waiter saw both places side by side
//     in the line after its own place was taken, and the servers never put a place in front of
//     another.
//   - No place is before the holder's. It was at the head of the line when its turn came.
//   - Other clients do not see the hand-over. They see the holder's place in line until it is
//     deleted, and then the heir's place at the head. The delete goes on until it has been
//     applied or the session is over. The end of the session removes both places.
//
// An operator may have deleted the waiter's znode by hand. So the waiter reads it once more
// before it believes in the lock, unless it saw the line less than held.Young ago. No operator
// deletes the place of a waiter that just came.
//
// A request to let go may reach the holder's place after the lock has left it. So the delete of a
// place with an heir names the version of a znode without a request. If the servers refuse the
// delete, the holder passes the request on to the heir.

// neighbour returns the lease of the place right before l, and notes l as its heir. It returns
// nil unless both places belong to a mutex and to this session.
func (l *Lease) neighbour(all []line.Position, behind int) *Lease {
	before := all[behind]
	if l.place.Role != exclusive || before.Role != exclusive || !l.place.is(all[behind+1]) {
		return nil
	}
	cl := l.held.Table().Find(l.place.lineup.path + "/" + before.Name)
	if cl == nil || cl.Lease() == nil {
		return nil
	}
	p := cl.Lease().Tag().(*place)
	p.inherit(l)
	return &Lease{cl.Lease(), p}
}

// awaitHandOver waits until the neighbour's holder lets go of its place. It returns true if
// the lock went to l. If not, the waiter has to look at the line again. looked is when it
// looked last.
func (l *Lease) awaitHandOver(ctx context.Context, before *Lease, looked leaseclock.Instant) (handed bool, err error) {
	err = l.awaitChange(ctx, before.Done())
	passed := err == nil && before.place.hadTurn() && before.Err() == nil
	if !passed {
		before.place.inherit(nil)
	}
	switch {
	case err != nil:
		return false, err
	case !passed:
		return false, l.awaitChange(ctx, before.held.Gone())
	}
	if err := l.awaitConnection(ctx); err != nil { // which may take long
		return false, err
	}
	t, path := l.held.Table(), l.place.path()
	if t.Client.Now().Sub(looked) < held.Young {
		return true, l.begin(true, false)
	}
	n, err := session.Within(ctx, t.Session.Status, func() (session.Decided, error) { return t.Session.Reads.Decide(path, session.OfNode) })
	switch {
	case err != nil:
		return false, l.notYet(ctx, err)
	case !l.held.Is(n):
		return false, l.held.Lose()
	}
	return true, l.begin(true, false)
}

func (p *place) inherit(heir *Lease) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.heir = heir
}

func (p *place) hadTurn() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.head
}

// unrevoked is the version of a place's znode without a request to let go. Only such a request
// ever writes to the znode.
const unrevoked = 0

// deletable is the version for the delete of the place. Needs mu.
func (p *place) deletable() int32 {
	if p.heir != nil && p.head && !p.asked {
		return unrevoked
	}
	return -1
}

// passOn gives a request to let go to the lease that has the lock now. The request came to this
// place after the lock had left it.
func (p *place) passOn() {
	for p != nil {
		p.mu.Lock()
		heir := p.heir
		p.mu.Unlock()
		switch {
		case heir == nil:
			return
		case heir.held.Over() == nil:
			heir.place.askedFor()
			return
		}
		p = heir.place
	}
}
