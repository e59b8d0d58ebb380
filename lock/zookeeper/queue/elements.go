package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// elements is what one session knows of the elements of a queue. All callers of the session
// share it.
//
// Elements are only added behind those that are there. So an old list can be worked off to its
// end. As long as it shows anything, it shows the head of the queue.
type elements struct {
	t    *held.Table
	path string

	mu    sync.Mutex
	line  []line.Position // in the queue, as far as known
	watch *session.Watch  // woken when line is out of date; nil before the first list
	// busy has the elements that no caller should try now, by name. An element is being
	// tried by a caller if its channel is nil. Otherwise it is locked, by whichever process,
	// and the channel is closed when the lock has ended.
	busy    map[string]<-chan struct{}
	changed chan struct{} // closed, and replaced, when line or busy changes
}

func newElements(t *held.Table, path string) *elements {
	return &elements{t: t, path: path, busy: make(map[string]<-chan struct{}), changed: make(chan struct{})}
}

func (e *elements) pathOf(p line.Position) string { return e.path + "/" + p.Name }

// pick returns the first element that is not busy, which is then being tried. If there is
// none, it returns nil, whether other callers are trying any, and a channel that is closed when
// it is time to pick again.
func (e *elements) pick() (p *line.Position, trying bool, changed <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.line {
		end, busy := e.busy[p.Name]
		if busy && end == nil {
			trying = true
		} else if !busy || closed(end) {
			e.busy[p.Name] = nil
			return &p, true, e.changed
		}
	}
	return nil, trying, e.changed
}

// drop takes note that an element is not in the queue any more.
func (e *elements) drop(p line.Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.Index(e.line, p); i >= 0 {
		e.line = slices.Delete(e.line, i, i+1)
	}
	delete(e.busy, p.Name)
	e.change()
}

// free ends the trial of an element that stays in the queue. until is closed when its lock ends,
// and nil if it is not locked.
func (e *elements) free(p line.Position, until <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change()
	if until == nil {
		delete(e.busy, p.Name)
		return
	}
	e.busy[p.Name] = until
	e.t.Go(func() {
		select {
		case <-until:
		case <-e.t.Over():
		}
		e.mu.Lock()
		defer e.mu.Unlock()
		if e.busy[p.Name] == until {
			delete(e.busy, p.Name)
		}
		e.change()
	})
}

// change wakes the callers that wait. Needs mu.
func (e *elements) change() {
	close(e.changed)
	e.changed = make(chan struct{})
}

// list reads the queue again if it has changed. renewed reports whether it did, and exists
// whether there is a queue.
func (e *elements) list(ctx context.Context) (exists, renewed bool, err error) {
	w := e.t.Watch(e.path, session.OnChildren, nil)
	if err := e.t.Await(ctx, w.Armed()); err != nil {
		return false, false, err
	}
	n, err := w.Found()
	if err != nil {
		return false, false, fmt.Errorf("%w: list: %w", idem.ErrUnavailable, err)
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.watch == w {
		return n.Exists, false, nil
	}
	all := line.Sort(n.Names)
	e.line = slices.DeleteFunc(all, func(p line.Position) bool { return p.Role != element })
	e.watch = w
	if n.Exists {
		e.change()
	}
	return n.Exists, true, nil
}

// unlocked are the elements of the list that are not known to be locked.
func (e *elements) unlocked() (all []line.Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, p := range e.line {
		if end := e.busy[p.Name]; end == nil || closed(end) {
			all = append(all, p)
		}
	}
	return all
}

// await waits until there may be an element to pick.
func (e *elements) await(ctx context.Context, changed <-chan struct{}) error {
	e.mu.Lock()
	w := e.watch
	e.mu.Unlock()
	select {
	case <-changed:
	case <-w.Woken():
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	return nil
}

// inspect reads an element that is being tried. It ends the trial unless the element is there
// and has no lock.
func (e *elements) inspect(ctx context.Context, p line.Position) (data session.Decided, ok bool, err error) {
	n, err := e.t.DecideFor(ctx, e.pathOf(p), session.OfNode)
	switch {
	case err != nil:
		e.free(p, nil)
		return n, false, fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
	case !n.Exists:
		e.drop(p)
	case n.Children > 0:
		e.free(p, e.lockEnd(p))
	}
	return n, n.Exists && n.Children == 0, nil
}

// lockEnd returns a channel that is closed when an element that was found locked has no lock,
// or has gone. It watches all children. So a foreign child keeps the element from being taken,
// and does no other harm.
func (e *elements) lockEnd(p line.Position) <-chan struct{} {
	return e.t.Watch(e.pathOf(p), session.OnChildren, func(n session.Hint) bool { return n.Children > 0 }).Woken()
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
