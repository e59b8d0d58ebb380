package queue

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// elements is the knowledge of one session about the elements of a queue. All callers of a Queue
// share it.
//
// New elements come at the end of the queue. So a caller can work off an old list to its end.
// The first element left on the list is the head of the queue.
type elements struct {
	t    *held.Table
	path string

	mu    sync.Mutex
	line  []line.Position // in the queue, as far as known
	watch *session.Watch  // woken when line is stale, nil before the first list
	// busy has the elements that are not to be tried now, by name. If the channel is nil, a
	// caller of this session is trying the element. Otherwise this or another process has
	// locked it, and the channel is closed when the lock has ended.
	busy    map[string]<-chan struct{}
	changed chan struct{} // closed, and replaced, when line or busy changes
}

func newElements(t *held.Table, path string) *elements {
	return &elements{t: t, path: path, busy: make(map[string]<-chan struct{}), changed: make(chan struct{})}
}

func (e *elements) pathOf(p line.Position) string { return e.path + "/" + p.Name }

// pick returns the first element that is not busy. The caller is trying it from then on. If
// all are busy it returns nil. trying reports whether other callers are trying some of them, and
// changed is closed when it is time to pick again.
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

// drop removes an element after it has left the queue.
func (e *elements) drop(p line.Position) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if i := slices.Index(e.line, p); i >= 0 {
		e.line = slices.Delete(e.line, i, i+1)
	}
	delete(e.busy, p.Name)
	e.change()
}

// free ends the trial of an element that may still be in the queue. until is closed when its
// lock ends. It is nil if the element has no lock.
func (e *elements) free(p line.Position, until <-chan struct{}) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.change()
	if until == nil {
		delete(e.busy, p.Name)
		return
	}
	e.busy[p.Name] = until
	e.t.Session.Status.Go(func() {
		select {
		case <-until:
		case <-e.t.Session.Status.Over():
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

// list reads the queue again if it has changed. renewed is true if it had changed, and exists is
// true if the queue has a znode.
func (e *elements) list(ctx context.Context) (exists, renewed bool, err error) {
	w := e.t.Session.Watches.Of(e.path, session.OnChildren, nil)
	if err := e.t.Session.Status.Await(ctx, w.Armed()); err != nil {
		return false, false, err
	}
	n, err := w.Found()
	if err != nil {
		return false, false, fmt.Errorf("%w: list: %w", driver.ErrUnavailable, err)
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

// inspect reads an element during its trial. It ends the trial unless the element is there and
// has no lock.
func (e *elements) inspect(ctx context.Context, p line.Position) (data session.Decided, ok bool, err error) {
	n, err := e.t.Session.Reads.DecideFor(ctx, e.pathOf(p), session.OfNode)
	switch {
	case err != nil:
		e.free(p, nil)
		return n, false, fmt.Errorf("%w: %w", driver.ErrUnavailable, err)
	case !n.Exists:
		e.drop(p)
	case n.Children > 0:
		// The watch is woken when the element has no child, or has gone. So a foreign child
		// keeps the element from being taken, and does no other harm.
		locked := func(n session.Hint) bool { return n.Children > 0 }
		e.free(p, e.t.Session.Watches.Of(e.pathOf(p), session.OnChildren, locked).Woken())
	}
	return n, n.Exists && n.Children == 0, nil
}

func closed(ch <-chan struct{}) bool {
	select {
	case <-ch:
		return true
	default:
		return false
	}
}
