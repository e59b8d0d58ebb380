package recipes

import (
	"context"
	"fmt"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// rule says whether it is the turn of the place at index me of a line. If not, it names
// what to wait for: the index of a place before me whose end may make it so, or anyChange.
type rule func(all []line.Position, me int) (turn bool, behind int)

// anyChange is for rules that have to look again whenever a place comes or goes. The
// waiters of a process then share one look.
const anyChange = -1

// first is the rule of an exclusive lock: each waits for the one before.
func first(_ []line.Position, me int) (turn bool, behind int) { return me == 0, me - 1 }

// awaitTurn waits until it is the turn of a place. The error wraps idem.ErrLeaseLost if the
// place is gone, and idem.ErrLocked if ctx ended before.
func (l *Lease) awaitTurn(ctx context.Context, r rule) error {
	for {
		all, err := l.lookAtLine(ctx)
		if err != nil {
			return err
		}
		turn, behind, err := l.judge(r, all)
		if turn || err != nil {
			return err
		}
		if behind == anyChange {
			return l.awaitTurnInCrowd(ctx, r)
		}
		if before := l.neighbour(all, behind); before != nil {
			if handed, err := l.awaitHandOver(ctx, before); handed || err != nil {
				return err
			}
			continue
		}
		if err := l.awaitChange(ctx, l.endOf(all[behind])); err != nil {
			return err
		}
	}
}

// turnAtOnce returns nil if it is the turn of a place now, and an error that wraps
// idem.ErrLocked if not. Places that this session is giving back do not count. It waits
// until they are gone, so that a caller finds a lock free that it has just released in the
// background.
func (l *Lease) turnAtOnce(ctx context.Context, r rule) error {
	t := l.Table()
	var leaving []*held.Claim
	for again := false; ; again = true {
		freed := t.Freed()
		all, err := l.lookAtLine(ctx)
		if err != nil {
			return err
		}
		turn, _, err := l.judge(r, all)
		if turn || err != nil {
			return err
		}
		var others []line.Position
		others, leaving = l.leaving(all, leaving)
		turn, _ = r(others, slices.IndexFunc(others, l.place.is))
		// A claim that was given up since the look began may be that of a place in the
		// line as it was seen. The next look does not show it any more.
		if !turn && (again || t.Freed() == freed) {
			return fmt.Errorf("%w: %s", idem.ErrLocked, l.place.lineup.name)
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

// leaving divides a line into the places that this session is giving back and the others.
// known are claims that were found to be given back before. They may be gone since.
func (l *Lease) leaving(all []line.Position, known []*held.Claim) (others []line.Position, leaving []*held.Claim) {
	for _, p := range all {
		at := l.place.lineup.path + "/" + p.Name
		cl := l.Table().Find(at)
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
	t, path := l.Table(), l.place.lineup.path
	n, err := session.Within(ctx, t.Session, func() (session.Decided, error) { return t.Decide(path, session.OfChildren) })
	if err != nil {
		return nil, l.notYet(ctx, err)
	}
	return line.Sort(n.Names), nil
}

// awaitTurnInCrowd is awaitTurn for a rule that looks at the whole line. Each look leaves a
// watch, so it misses no change between two looks.
func (l *Lease) awaitTurnInCrowd(ctx context.Context, r rule) error {
	t := l.Table()
	for {
		w := t.Watch(l.place.lineup.path, session.OnChildren, nil)
		if err := l.awaitChange(ctx, w.Armed()); err != nil {
			return err
		}
		n, _ := w.Found()
		all := line.Sort(n.Names)
		if !slices.ContainsFunc(all, l.place.is) {
			// The watch is from before this place was taken, and about to fire. Or the
			// server is stale. Or the place is gone, and then nothing may ever fire.
			var err error
			if all, err = l.lookAtLine(ctx); err != nil {
				return err
			}
		}
		turn, _, err := l.judge(r, all)
		if turn || err != nil {
			return err
		}
		if err := l.awaitChange(ctx, w.Woken()); err != nil {
			return err
		}
		if err := t.AwaitUp(ctx); err != nil { // woken by the loss of the connection
			return l.notYet(ctx, fmt.Errorf("%w: %w", idem.ErrUnavailable, err))
		}
	}
}

// judge applies a rule to a line as it was read after the place was taken. A create alone
// never grants a place: the line has to show it. A line that shows the place is never too
// old, even if it is a hint. No place is ever taken in front of another. So the line shows
// all places in front, and at worst some that have gone. Only a deciding read says that the
// place itself is gone.
func (l *Lease) judge(r rule, all []line.Position) (turn bool, behind int, err error) {
	me := slices.IndexFunc(all, l.place.is)
	if me < 0 {
		return false, 0, l.Lose()
	}
	turn, behind = r(all, me)
	if turn {
		err = l.begin(me == 0, me == len(all)-1)
	}
	return turn, behind, err
}

// begin makes sure that a lease whose turn it is can be trusted, and only then counts it as
// a use of the line. head says that no place is before it, and alone that none is behind it.
func (l *Lease) begin(head, alone bool) error {
	l.place.mu.Lock()
	l.place.head, l.place.alone = head, alone
	l.place.mu.Unlock()
	l.Table().Trusted()
	if over := l.Over(); over != nil {
		return over
	}
	l.place.lineup.uses.Add(1)
	return nil
}

// awaitChange waits for a channel to be closed, as long as the place is there.
func (l *Lease) awaitChange(ctx context.Context, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-l.Done():
		return l.Over()
	case <-ctx.Done():
		return l.notYet(ctx, nil)
	}
}

// notYet is the error of a place whose turn has not come: that ctx ended, or else err.
func (l *Lease) notYet(ctx context.Context, err error) error {
	if over := l.Over(); over != nil {
		return over
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s: %w", idem.ErrLocked, l.place.lineup.name, context.Cause(ctx))
	}
	return err
}

// endOf returns a channel that is closed when a place is gone, or may be. A place of this
// process needs no watch.
func (l *Lease) endOf(p line.Position) <-chan struct{} {
	path := l.place.lineup.path + "/" + p.Name
	if cl := l.Table().Find(path); cl != nil {
		return cl.Freed()
	}
	return l.Table().Watch(path, session.OnNode, nil).Woken()
}
