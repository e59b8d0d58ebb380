package queue

import (
	"context"
	"errors"
	"fmt"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Poll removes and returns the oldest element that no consumer has locked. ok is
// false if there is none: that was so at some moment during the call.
//
// The error wraps idem.ErrUnavailable, and nothing was removed then, or it is an
// [*InDoubtError] that carries the element.
func (q *Queue) Poll(ctx context.Context) (e Element, ok bool, err error) {
	e, err = q.Remove(ctx)
	if errors.Is(err, ErrEmpty) {
		return Element{}, false, nil
	}
	return e, err == nil, err
}

// Remove is Poll, except that it returns ErrEmpty where there is none.
func (q *Queue) Remove(ctx context.Context) (Element, error) {
	return q.take(ctx, false)
}

// Take is Remove, except that it waits for an element. Where ctx ends before
// there is one, the error wraps ErrEmpty and the cause of ctx; where it ends
// amid a request, idem.ErrUnavailable or an [*InDoubtError]. While ZooKeeper
// cannot be asked it goes on trying as [zookeeper.Config].Retry allows.
func (q *Queue) Take(ctx context.Context) (Element, error) {
	return q.take(ctx, true)
}

// Peek returns what Poll would, and leaves it in the queue: ErrEmpty if
// that is nothing, and errors that wrap idem.ErrUnavailable.
func (q *Queue) Peek(ctx context.Context) (Element, error) {
	t, err := q.fresh(ctx)
	if err != nil {
		return Element{}, err
	}
	l, err := q.list(ctx, t)
	if err != nil {
		return Element{}, err
	}
	l.mu.Lock()
	line := l.line[l.head:]
	l.mu.Unlock()
	for _, p := range line {
		path := q.pathOf(p)
		if endOfLock(t, path) != nil {
			continue
		}
		n, err := t.DecideFor(ctx, path, session.OfNode)
		switch {
		case err != nil:
			return Element{}, fmt.Errorf("%w: peek: %w", idem.ErrUnavailable, err)
		case n.Exists && n.Children == 0:
			return Element{ID: p.Unique(), Data: n.Data}, nil
		}
	}
	return Element{}, ErrEmpty
}

// Len returns how many elements there are, locked or not. The error wraps
// idem.ErrUnavailable.
func (q *Queue) Len(ctx context.Context) (int, error) {
	t, err := q.fresh(ctx)
	if err != nil {
		return 0, err
	}
	n, err := t.DecideFor(ctx, q.path, session.OfNode)
	if err != nil {
		return 0, fmt.Errorf("%w: length: %w", idem.ErrUnavailable, err)
	}
	return int(n.Children), nil
}

// fresh returns a session whose deciding reads show every write that was acknowledged
// to anybody before the call.
func (q *Queue) fresh(ctx context.Context) (*held.Table, error) {
	if err := q.check(); err != nil {
		return nil, err
	}
	t, err := q.c.Table()
	if err != nil {
		return nil, err
	}
	return t, t.Barrier(ctx)
}

// verdict is what came of the attempt to have an element.
type verdict uint8

const (
	failed verdict = iota // nobody may try again for this caller
	had                   // this caller has it
	gone                  // somebody else had it before
	locked                // somebody else has locked it
)

// try is an attempt to have element i of a listing, whose slot it owns.
type try func(ctx context.Context, l *listing, i int, cl *held.Claim) (verdict, error)

func (q *Queue) take(ctx context.Context, wait bool) (e Element, err error) {
	err = q.serve(ctx, wait, func(ctx context.Context, l *listing, i int, cl *held.Claim) (v verdict, err error) {
		e, v, err = q.remove(ctx, l, i, cl)
		return v, err
	})
	return e, err
}

// serve tries to have elements, the oldest first, until it has one.
func (q *Queue) serve(ctx context.Context, wait bool, have try) error {
	if err := q.check(); err != nil {
		return err
	}
	for retries := q.c.Retries(); ; {
		err := q.walk(ctx, wait, have)
		var doubt *InDoubtError
		if err == nil || !wait || !errors.Is(err, idem.ErrUnavailable) || session.Refusal(err) || errors.As(err, &doubt) {
			return err
		}
		if !retries.Wait(ctx) {
			return fmt.Errorf("%w: %s: nothing taken: %w", idem.ErrUnavailable, q.name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// maxMisses is how many elements of an old listing may turn out to be had by
// others, one after the other, before a new one is worth its price.
const maxMisses = 32

// walk is serve in one session.
func (q *Queue) walk(ctx context.Context, wait bool, have try) error {
	t, err := q.c.Table()
	if err != nil {
		return err
	}
	l, barrier, misses := q.cached(t), false, 0
	for {
		i, cl, err := q.claim(l)
		if err != nil {
			return err
		}
		if cl != nil {
			v, err := have(ctx, l, i, cl)
			if v == had || v == failed {
				return err
			}
			if misses++; misses < maxMisses || !l.stale() {
				continue
			}
			misses = 0 // others have worked off much of it
		}
		// It is worked off, but there may be more by now.
		latest, err := q.list(ctx, t)
		missing := err == nil && latest.missing()
		switch {
		case err != nil:
		case missing && wait: // what is not there cannot be watched
			err = q.ensure(ctx, t)
		case !missing && latest != l:
			l = latest
		case wait:
			err = q.awaitChange(ctx, l)
		case !barrier: // others may have written a moment ago
			err, barrier = t.Barrier(ctx), true
		default:
			return ErrEmpty
		}
		if ctx.Err() != nil {
			return fmt.Errorf("%w: %s: %w", ErrEmpty, q.name, context.Cause(ctx))
		}
		if err != nil {
			return err
		}
	}
}

// ensure makes the queue's znode.
func (q *Queue) ensure(ctx context.Context, t *held.Table) error {
	return line.EnsureFor(ctx, t, q.path)
}

// inspect reads an element whose claim the caller has. The claim is given up
// unless the element is there and free.
func (q *Queue) inspect(ctx context.Context, l *listing, i int, cl *held.Claim) (session.Decided, verdict, error) {
	path := q.pathOf(l.line[i])
	n, err := l.t.DecideFor(ctx, path, session.OfNode)
	switch {
	case err != nil:
		cl.Free()
		return n, failed, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	case !n.Exists:
		l.drop(i)
		cl.Free()
		return n, gone, nil
	case n.Children > 0:
		watchElement(l.t, path)
		cl.Free()
		return n, locked, nil
	}
	return n, had, nil
}

// remove deletes an element. That it has no lock is seen to by the servers, who
// delete no znode that has children.
func (q *Queue) remove(ctx context.Context, l *listing, i int, cl *held.Claim) (Element, verdict, error) {
	n, v, err := q.inspect(ctx, l, i, cl)
	if v != had {
		return Element{}, v, err
	}
	path := q.pathOf(l.line[i])
	e := Element{ID: l.line[i].Unique(), Data: n.Data}
	settled := func(r session.Result) {
		switch {
		case r.Outcome == session.Applied, r.RefusedBy(zk.ErrNoNode):
			l.drop(i)
		case r.RefusedBy(zk.ErrNotEmpty):
			watchElement(l.t, path)
		}
		cl.Free()
	}
	r := once.Write(ctx, l.t, settled, &zk.DeleteRequest{Path: path, Version: -1})
	switch {
	case r.Outcome == session.Applied:
		return e, had, nil
	case r.RefusedBy(zk.ErrNoNode):
		return e, gone, nil
	case r.RefusedBy(zk.ErrNotEmpty):
		return e, locked, nil
	case r.Outcome == session.Unknown:
		return e, failed, &InDoubtError{Op: "take", Elements: []Element{e}, Err: r.Err}
	}
	return e, failed, fmt.Errorf("%w: take: %w", idem.ErrUnavailable, r.Err)
}
