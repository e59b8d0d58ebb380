package queue

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/once"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Poll removes and returns the oldest element without a lock. ok is false if at some moment during
// the call the queue had no such element.
//
// The error wraps driver.ErrUnavailable if nothing was removed. Otherwise it is an
// [*InDoubtError] with the element.
func (q *Queue) Poll(ctx context.Context) (e Element, ok bool, err error) {
	e, err = q.Remove(ctx)
	if errors.Is(err, ErrEmpty) {
		return Element{}, false, nil
	}
	return e, err == nil, err
}

// Remove is Poll, except that it returns ErrEmpty if there is no element.
func (q *Queue) Remove(ctx context.Context) (Element, error) { return q.take(ctx, false) }

// Take is Remove, except that it waits for an element. If ctx ends while it waits, the error
// wraps ErrEmpty and the cause of ctx. If ctx ends amid a request, the error wraps
// driver.ErrUnavailable or is an [*InDoubtError]. While ZooKeeper cannot be asked, Take goes on
// trying as the client's retries allow.
func (q *Queue) Take(ctx context.Context) (Element, error) { return q.take(ctx, true) }

// Peek returns what Poll would, and leaves it in the queue. It returns ErrEmpty if there is no
// element. Other errors wrap driver.ErrUnavailable.
func (q *Queue) Peek(ctx context.Context) (Element, error) {
	t, err := q.fresh(ctx)
	if err != nil {
		return Element{}, err
	}
	all := q.elements(t)
	if _, _, err := all.list(ctx); err != nil {
		return Element{}, err
	}
	all.mu.Lock()
	line := slices.Clone(all.line)
	all.mu.Unlock()
	for _, p := range line {
		n, err := t.Session.Reads.DecideFor(ctx, all.pathOf(p), session.OfNode)
		switch {
		case err != nil:
			return Element{}, fmt.Errorf("%w: peek: %w", driver.ErrUnavailable, err)
		case n.Exists && n.Children == 0:
			return Element{ID: p.Unique(), Data: n.Data}, nil
		}
	}
	return Element{}, ErrEmpty
}

// Len returns the number of elements, locked or not. The error wraps driver.ErrUnavailable.
func (q *Queue) Len(ctx context.Context) (int, error) {
	t, err := q.fresh(ctx)
	if err != nil {
		return 0, err
	}
	n, err := t.Session.Reads.DecideFor(ctx, q.path, session.OfNode)
	if err != nil {
		return 0, fmt.Errorf("%w: length: %w", driver.ErrUnavailable, err)
	}
	return int(n.Children), nil
}

// take removes an element. The servers refuse to delete a znode with children, so they refuse to
// delete a locked element.
func (q *Queue) take(ctx context.Context, wait bool) (taken Element, err error) {
	err = serve(ctx, q, wait, func(e *elements, p line.Position) (done bool, err error) {
		n, ok, err := e.inspect(ctx, p)
		if !ok {
			return false, err
		}
		settled := func(r session.Result) {
			if r.Outcome == session.Applied {
				e.drop(p)
			} else {
				e.free(p, nil)
			}
		}
		taken = Element{ID: p.Unique(), Data: n.Data}
		r := once.Write(ctx, e.t, settled, &zk.DeleteRequest{Path: e.pathOf(p), Version: -1})
		switch {
		case r.Outcome == session.Applied:
			return true, nil
		case r.RefusedBy(zk.ErrNoNode), r.RefusedBy(zk.ErrNotEmpty): // another process was first
			return false, nil
		case r.Outcome == session.Unknown:
			return true, &InDoubtError{Op: "take", Elements: []Element{taken}, Err: r.Err}
		}
		return true, fmt.Errorf("%w: take: %w", driver.ErrUnavailable, r.Err)
	})
	if err != nil {
		return Element{}, err
	}
	return taken, nil
}

// serve has a caller try elements, the oldest first, until a trial is done.
func serve(ctx context.Context, q *Queue, wait bool, try func(*elements, line.Position) (done bool, err error)) error {
	for retries := q.c.Retries(); ; {
		t, err := q.c.Table()
		if err == nil {
			err = q.elements(t).serve(ctx, wait, try)
		}
		var doubt *InDoubtError
		if !wait || !errors.Is(err, driver.ErrUnavailable) || session.Refusal(err) || errors.As(err, &doubt) {
			return err
		}
		if !retries.Wait(ctx) {
			return fmt.Errorf("%w: %s: nothing taken: %w", driver.ErrUnavailable, q.name, errors.Join(context.Cause(ctx), err))
		}
	}
}

// maxMisses bounds the misses in an old list. After so many elements were gone or locked, a new
// list is worth its price.
const maxMisses = 32

// serve is serve in one session.
//
// The queue is empty if a caller finds no element to try, before and after a barrier, and
// nothing has changed in between. An element that another caller is trying may stay. So serve
// waits for the outcome of that trial.
func (e *elements) serve(ctx context.Context, wait bool, try func(*elements, line.Position) (done bool, err error)) error {
	var confirmed <-chan struct{}
	for misses := 0; ; {
		p, trying, changed := e.pick()
		if p != nil {
			if done, err := try(e, *p); done || err != nil {
				return err
			}
			if misses++; misses%maxMisses != 0 {
				continue
			}
		}
		exists, renewed, err := e.list(ctx)
		switch {
		case err != nil:
		case !exists && wait: // a missing znode cannot be watched
			err = line.EnsureFor(ctx, e.t, e.path)
		case p != nil || exists && renewed:
		case wait || trying:
			err = e.await(ctx, changed)
		case confirmed != changed:
			confirmed, err = changed, e.t.Session.Pulse.Barrier(ctx)
		default:
			return ErrEmpty
		}
		switch {
		case ctx.Err() != nil && wait:
			return fmt.Errorf("%w: %s: %w", ErrEmpty, e.path, context.Cause(ctx))
		case ctx.Err() != nil:
			return fmt.Errorf("%w: %s: %w", driver.ErrUnavailable, e.path, context.Cause(ctx))
		case err != nil:
			return err
		}
	}
}
