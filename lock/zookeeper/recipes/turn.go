package recipes

import (
	"context"
	"fmt"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// rule reports whether the place at index me of a line has its turn. If not, behind is the
// index of a place before it, and the waiter looks again after the end of that place. Or behind
// is anyChange.
type rule func(all []line.Position, me int) (turn bool, behind int)

// anyChange makes the waiter look again whenever a place comes or goes. The waiters of a
// process share one look.
const anyChange = -1

// first is the rule of an exclusive lock. Each place waits for the one right before it.
func first(_ []line.Position, me int) (turn bool, behind int) { return me == 0, me - 1 }

// awaitTurn waits for the turn of the place. The error wraps driver.ErrLeaseLost if the place is
// gone, and driver.ErrLocked if ctx ended first.
func (l *Lease) awaitTurn(ctx context.Context, r rule) error {
	for {
		looked := l.held.Table().Client.Now()
		all, err := l.lookAtLine(ctx)
		if err != nil {
			return err
		}
		turn, behind, err := l.judge(ctx, r, all)
		if turn || err != nil {
			return err
		}
		if behind == anyChange {
			return l.awaitTurnInCrowd(ctx, r)
		}
		if before := l.neighbour(all, behind); before != nil {
			if handed, err := l.awaitHandOver(ctx, before, looked); handed || err != nil {
				return err
			}
			continue
		}
		if err := l.awaitChange(ctx, l.endOf(all[behind])); err != nil {
			return err
		}
	}
}

// turnAtOnce returns nil if the place has its turn now. Otherwise the error wraps
// driver.ErrLocked. It does not count the places that this session is giving back, and waits
// until they are gone. So a caller finds the lock free right after it released the lock in the
// background.
func (l *Lease) turnAtOnce(ctx context.Context, r rule) error {
	t := l.held.Table()
	var leaving []*held.Claim
	for again := false; ; again = true {
		freed := t.Freed()
		all, err := l.lookAtLine(ctx)
		if err != nil {
			return err
		}
		turn, _, err := l.judge(ctx, r, all)
		if turn || err != nil {
			return err
		}
		var others []line.Position
		others, leaving = l.leaving(all, leaving)
		turn, _ = r(others, slices.IndexFunc(others, l.place.is))
		// The line may still show a place whose claim was freed after the look began. The
		// next look does not show it.
		if !turn && (again || t.Freed() == freed) {
			return fmt.Errorf("%w: %s", driver.ErrLocked, l.place.lineup.name)
		}
		if !turn {
			continue
		}
		for _, cl := range leaving {
			if err := l.awaitChange(ctx, cl.Freed()); err != nil {
				return err
			}
		}
	}
}

// leaving separates the places of a line. This session is giving back the places of leaving.
// known has the leaving claims of the look before. The table may have dropped them since.
func (l *Lease) leaving(all []line.Position, known []*held.Claim) (others []line.Position, leaving []*held.Claim) {
	for _, p := range all {
		at := l.place.lineup.path + "/" + p.Name
		cl := l.held.Table().Find(at)
		if cl == nil {
			if i := slices.IndexFunc(known, func(k *held.Claim) bool { return k.Path() == at }); i >= 0 {
				cl = known[i]
			}
		}
		if cl != nil && cl.Releasing() {
			leaving = append(leaving, cl)
		} else {
			others = append(others, p)
		}
	}
	return others, leaving
}

// lookAtLine reads the line of a place.
func (l *Lease) lookAtLine(ctx context.Context) ([]line.Position, error) {
	t, path := l.held.Table(), l.place.lineup.path
	n, err := session.Within(ctx, t.Session.Status, func() (session.Decided, error) { return t.Session.Reads.Decide(path, session.OfChildren) })
	if err != nil {
		return nil, l.notYet(ctx, err)
	}
	return line.Sort(n.Names), nil
}

// awaitTurnInCrowd is awaitTurn for a rule about the whole line. Each look leaves a watch, so
// the waiter misses no change between two looks.
func (l *Lease) awaitTurnInCrowd(ctx context.Context, r rule) error {
	t := l.held.Table()
	for {
		w := t.Session.Watches.Of(l.place.lineup.path, session.OnChildren, nil)
		if err := l.awaitChange(ctx, w.Armed()); err != nil {
			return err
		}
		n, _ := w.Found()
		all := line.Sort(n.Names)
		if !slices.ContainsFunc(all, l.place.is) {
			// The watch may be older than this place, and then it is about to fire. Or the
			// server is stale. Or the place is gone, and the watch may never fire.
			var err error
			if all, err = l.lookAtLine(ctx); err != nil {
				return err
			}
		}
		turn, _, err := l.judge(ctx, r, all)
		if turn || err != nil {
			return err
		}
		if err := l.awaitChange(ctx, w.Woken()); err != nil {
			return err
		}
		if err := l.awaitConnection(ctx); err != nil { // woken by the loss of the connection
			return err
		}
	}
}

// judge applies a rule to a line that was read after the place was taken. A create alone grants
// nothing, because the line has to show the place. A line with the place in it is never too
// old, not even as a hint. The servers never put a place in front of another. So the line shows
// all places in front, and at worst also some places of the past. A line without the place has
// to come from a deciding read, because the place then counts as lost.
//
// A place keeps its turn while the connection is suspended, but the client gives out no lease then.
// So judge waits for the connection.
func (l *Lease) judge(ctx context.Context, r rule, all []line.Position) (turn bool, behind int, err error) {
	me := slices.IndexFunc(all, l.place.is)
	if me < 0 {
		return false, 0, l.held.Lose()
	}
	turn, behind = r(all, me)
	if turn {
		err = l.awaitConnection(ctx)
	}
	if turn && err == nil {
		err = l.begin(me == 0, me == len(all)-1)
	}
	return turn, behind, err
}

// begin starts a lease at its turn. It fails if the trust in the session has run out. Only a
// trusted lease counts as a use of the line. head is true if no place is before it, and alone
// is true if no place is behind it.
func (l *Lease) begin(head, alone bool) error {
	l.place.mu.Lock()
	l.place.head, l.place.alone = head, alone
	l.place.mu.Unlock()
	l.held.Table().Session.Trust.Trusted()
	if over := l.held.Over(); over != nil {
		return over
	}
	l.place.lineup.uses.Add(1)
	return nil
}

// awaitChange waits until ch is closed. It fails if the place is lost or ctx ends first.
func (l *Lease) awaitChange(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-l.Done():
		return l.held.Over()
	case <-ctx.Done():
		return l.notYet(ctx, nil)
	}
}

// awaitConnection waits until the client may give out leases. The error wraps driver.ErrLeaseLost if
// the place was lost first, and driver.ErrUnavailable and the cause of ctx if ctx ended first.
func (l *Lease) awaitConnection(ctx context.Context) error {
	err := l.held.Table().Session.Status.AwaitUp(ctx)
	switch over := l.held.Over(); {
	case err == nil:
		return nil
	case over != nil:
		return over
	}
	return fmt.Errorf("%w: %s: %w", driver.ErrUnavailable, l.place.lineup.name, err)
}

// notYet returns the error of a place still without its turn. It names the loss of the place,
// or else the end of ctx, or else err.
func (l *Lease) notYet(ctx context.Context, err error) error {
	if over := l.held.Over(); over != nil {
		return over
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s: %w", driver.ErrLocked, l.place.lineup.name, context.Cause(ctx))
	}
	return err
}

// endOf returns a channel for the end of a place. The channel may also close early. A place of
// this process needs no watch.
func (l *Lease) endOf(p line.Position) <-chan struct{} {
	path := l.place.lineup.path + "/" + p.Name
	if cl := l.held.Table().Find(path); cl != nil {
		return cl.Freed()
	}
	return l.held.Table().Session.Watches.Of(path, session.OnNode, nil).Woken()
}
