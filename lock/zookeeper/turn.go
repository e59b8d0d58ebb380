package zookeeper

import (
	"context"
	"fmt"
	"slices"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// rule says whether it is the turn of the place at index me of a line. If not,
// it names whom to wait for: the index of a place before me whose end may make
// it so, or everybody.
type rule func(line []position, me int) (turn bool, behind int)

// everybody is for rules that have to look again whenever anybody comes or
// goes. The waiters of a process share one look then.
const everybody = -1

// first is the rule of an exclusive lock: each waits for the one before.
func first(_ []position, me int) (turn bool, behind int) { return me == 0, me - 1 }

// awaitTurn waits until it is the turn of a place. The error wraps
// idem.ErrLeaseLost where the place is gone, and idem.ErrLocked where ctx ended
// before.
func (s *locks) awaitTurn(ctx context.Context, l *Lease, r rule) error {
	for {
		all, err := s.look(ctx, l)
		if err != nil {
			return err
		}
		turn, behind, err := s.judge(l, r, all)
		if turn || err != nil {
			return err
		}
		if behind == everybody {
			return s.awaitTurnInCrowd(ctx, l, r)
		}
		if before := s.neighbour(l, all, behind); before != nil {
			if handed, err := s.awaitHandOver(ctx, l, before); handed || err != nil {
				return err
			}
			continue
		}
		if err := s.awaitChange(ctx, l, s.watchPlace(l.place.line.path+"/"+all[behind].name)); err != nil {
			return err
		}
	}
}

// turnAtOnce returns nil if it is the turn of a place now, and an error that wraps
// idem.ErrLocked if not. Places that this very session is giving back do not count:
// it waits until they are gone, so that a caller finds the lock free that it has
// just released in the background.
func (s *locks) turnAtOnce(ctx context.Context, l *Lease, r rule) error {
	var leaving []*slot
	for again := false; ; again = true {
		frees := s.freed()
		all, err := s.look(ctx, l)
		if err != nil {
			return err
		}
		turn, _, err := s.judge(l, r, all)
		if turn || err != nil {
			return err
		}
		var others []position
		others, leaving = s.leaving(l.place.line.path, all, leaving)
		turn, _ = r(others, slices.IndexFunc(others, l.place.is))
		// A slot that was freed since the look began may be that of a place in the
		// line as it was seen. The next look does not show it any more.
		if !turn && (again || s.freed() == frees) {
			return fmt.Errorf("%w: %s", idem.ErrLocked, l.place.line.name)
		}
		if !turn {
			continue
		}
		for _, sl := range leaving {
			if err := s.awaitChange(ctx, l, sl.freed); err != nil {
				return err
			}
		}
	}
}

// look reads the line of a place.
func (s *locks) look(ctx context.Context, l *Lease) ([]position, error) {
	n, err := session.Within(ctx, s.Session, func() (session.Decided, error) { return s.Decide(l.place.line.path, session.OfChildren) })
	if err != nil {
		return nil, s.notYet(ctx, l, err)
	}
	return positions(n.Names), nil
}

// freed counts the slots that were given up so far.
func (s *locks) freed() uint64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.frees
}

// leaving divides a line into the places that this session is giving back and the
// others. known are slots that were found to be given back before, and may be gone
// since the line was looked at.
func (s *locks) leaving(path string, line []position, known []*slot) (others []position, leaving []*slot) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, p := range line {
		at := path + "/" + p.name
		sl := s.slots[at]
		if i := slices.IndexFunc(known, func(k *slot) bool { return k.path == at }); sl == nil && i >= 0 {
			sl = known[i]
		}
		if sl != nil && sl.phase == releasing {
			leaving = append(leaving, sl)
		} else {
			others = append(others, p)
		}
	}
	return others, leaving
}

// awaitTurnInCrowd is awaitTurn for a rule that looks at everybody: each look
// leaves a watch, so that no change between two looks is missed.
func (s *locks) awaitTurnInCrowd(ctx context.Context, l *Lease, r rule) error {
	for {
		w := s.Watch(l.place.line.path, session.OnChildren, nil)
		if err := s.awaitChange(ctx, l, w.Armed()); err != nil {
			return err
		}
		n, _ := w.Found()
		all := positions(n.Names)
		if !slices.ContainsFunc(all, l.place.is) {
			// The watch is from before this place was taken, and about to fire; or
			// the server is behind; or the place is gone, and then nothing may ever
			// fire.
			var err error
			if all, err = s.look(ctx, l); err != nil {
				return err
			}
		}
		turn, _, err := s.judge(l, r, all)
		if turn || err != nil {
			return err
		}
		if err := s.awaitChange(ctx, l, w.Woken()); err != nil {
			return err
		}
		if err := s.AwaitUp(ctx); err != nil { // woken by the loss of the connection
			return s.notYet(ctx, l, fmt.Errorf("%w: %w", idem.ErrUnavailable, err))
		}
	}
}

// judge applies a rule to a line as it was read after the place was taken. A
// place is never granted on the strength of its own create alone: the line has
// to show it. A line that shows it is never too old to go by, also where it is a
// hint. No place is ever taken in front of another, so that such a line shows all
// that are in front, and at worst some that have gone. That the place itself is gone
// is said by a deciding read alone.
func (s *locks) judge(l *Lease, r rule, all []position) (turn bool, behind int, err error) {
	me := slices.IndexFunc(all, l.place.is)
	if me < 0 {
		s.lose(l, fmt.Errorf("%w: its znode is gone", idem.ErrLeaseLost))
		return false, 0, l.over()
	}
	turn, behind = r(all, me)
	if turn {
		err = s.take(l, me == 0, me == len(all)-1)
	}
	return turn, behind, err
}

// take makes sure that a lease whose turn it is can be trusted, and only then
// counts it as a use of the line. head says that nobody is before it, and alone
// that nobody is behind it.
func (s *locks) take(l *Lease, head, alone bool) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	if over := l.over(); over != nil {
		return over
	}
	if !s.LeaseTrusted() {
		return l.over()
	}
	l.place.head, l.place.alone = head, alone
	l.place.line.uses.Add(1)
	return nil
}

// awaitChange waits for a channel to be closed, as long as the place is there.
func (s *locks) awaitChange(ctx context.Context, l *Lease, ch <-chan struct{}) error {
	select {
	case <-ch:
		return nil
	case <-l.done:
		return l.over()
	case <-ctx.Done():
		return s.notYet(ctx, l, nil)
	}
}

// notYet is the error of a place whose turn it was not yet: that ctx ended, if
// it did, or else err.
func (s *locks) notYet(ctx context.Context, l *Lease, err error) error {
	if over := l.over(); over != nil {
		return over
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %s: %w", idem.ErrLocked, l.place.line.name, context.Cause(ctx))
	}
	return err
}

// watchPlace returns a channel that is closed when the place at path is gone,
// or may be. Who waits for one of its own process needs no watch.
func (s *locks) watchPlace(path string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.slots[path]; sl != nil {
		return sl.freed
	}
	return s.Watch(path, session.OnNode, nil).Woken()
}
