package recipes

import (
	"context"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// A mutex goes from a place to the next place of the same session without waiting for the
// servers to delete the first one. This is as safe as waiting:
//
//   - No other place is between the two, and none can come between them. The waiter saw the
//     two side by side in the line after its own place was taken, and the servers never put
//     a place in front of another.
//   - No place is before the first one. It was at the head of the line when its turn came.
//   - The other clients learn nothing of it. For them the first place is in line until it is
//     deleted, and then the next one is at the head. The delete goes on until it has been
//     applied or the session is over, and the session takes both places along.
//
// An operator may have deleted the waiter's znode by hand. So the waiter reads it once more
// before it believes in the lock.
//
// A request to let go may come to the first place after the lock has left it. So the delete
// of a place that has an heir names the version of a znode without a request. If the
// servers refuse it, the request is passed on to the heir.

// neighbour returns the lease of the place right before that of l, if both places belong to
// a mutex and to this session.
func (l *Lease) neighbour(all []line.Position, behind int) *Lease {
	before := all[behind]
	if l.place.Role != exclusive || before.Role != exclusive || behind+1 >= len(all) || !l.place.is(all[behind+1]) {
		return nil
	}
	cl := l.Table().Find(l.place.lineup.path + "/" + before.Name)
	if cl == nil || cl.Lease() == nil {
		return nil
	}
	p := cl.Lease().Tag().(*place)
	p.inherit(l)
	return &Lease{cl.Lease(), p}
}

// awaitHandOver waits until the neighbour's holder lets go of its place. It returns true if
// the lock went to l. If not, the waiter has to look at the line again.
func (l *Lease) awaitHandOver(ctx context.Context, before *Lease) (handed bool, err error) {
	err = l.awaitChange(ctx, before.Done())
	passed := err == nil && before.place.hadTurn() && before.Err() == nil
	if !passed {
		before.place.inherit(nil)
	}
	switch {
	case err != nil:
		return false, err
	case !passed:
		return false, l.awaitChange(ctx, before.Gone())
	}
	t, path := l.Table(), l.place.path()
	n, err := session.Within(ctx, t.Session, func() (session.Decided, error) { return t.Decide(path, session.OfNode) })
	switch {
	case err != nil:
		return false, l.notYet(ctx, err)
	case !l.Is(n):
		return false, l.Lose()
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

// unrevoked is the version of a place's znode that carries no request. Only a request ever
// changes its data.
const unrevoked = 0

// deletable is the version that a delete of the place names. Needs mu.
func (p *place) deletable() int32 {
	if p.heir != nil && p.head && !p.asked {
		return unrevoked
	}
	return -1
}

// passOn gives a request that came to a place which is being given back to the lease that
// has inherited the lock.
func (p *place) passOn() {
	for p != nil {
		p.mu.Lock()
		heir := p.heir
		p.mu.Unlock()
		switch {
		case heir == nil:
			return
		case heir.Over() == nil:
			heir.place.askedFor()
			return
		}
		p = heir.place
	}
}
