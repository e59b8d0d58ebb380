package queue

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// listing is a list of a queue's elements, and how far this process has worked
// it off. What is offered later comes behind all of them, so that a listing may
// be worked off to its end although it is out of date: it shows the head of the
// queue as long as it shows anything.
type listing struct {
	t *held.Table
	w *session.Watch // fires when the list is out of date

	mu   sync.Mutex
	line []line.Position
	gone []bool
	head int // all before it are gone
}

// stale reports whether the queue has changed since.
func (l *listing) stale() bool {
	select {
	case <-l.w.Woken():
		return true
	default:
		return false
	}
}

// missing reports whether there was no queue to list.
func (l *listing) missing() bool {
	n, _ := l.w.Found()
	return !n.Exists
}

// drop takes note of an element that is there no more.
func (l *listing) drop(i int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.gone[i] = true
	for l.head < len(l.line) && l.gone[l.head] {
		l.head++
	}
}

// claim takes the slot of the first element that nobody is known to have locked.
// cl is nil if there is none.
func (q *Queue) claim(l *listing) (i int, cl *held.Claim, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.head; i < len(l.line); i++ {
		path := q.pathOf(l.line[i])
		if l.gone[i] || l.t.Watching(path, session.OnChildren) != nil {
			continue
		}
		cl, _, err := l.t.Claim(lockOf(path))
		if cl != nil || err != nil {
			return i, cl, err
		}
	}
	return 0, nil, nil
}

// list returns the latest listing if it is up to date, or else a new one.
func (q *Queue) list(ctx context.Context, t *held.Table) (*listing, error) {
	w := q.watchElements(t)
	if err := t.Await(ctx, w.Armed()); err != nil {
		return nil, err
	}
	n, err := w.Found()
	if err != nil {
		return nil, fmt.Errorf("%w: list: %w", idem.ErrUnavailable, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.w != w {
		all := line.Sort(n.Names)
		all = slices.DeleteFunc(all, func(p line.Position) bool { return p.Role != element })
		q.latest = &listing{t: t, w: w, line: all, gone: make([]bool, len(all))}
	}
	return q.latest, nil
}

// cached returns the latest listing of a session, up to date or not. It is empty
// at first.
func (q *Queue) cached(t *held.Table) *listing {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.t != t {
		return &listing{t: t}
	}
	return q.latest
}

// watchElements returns the watch that comes with a listing. All callers of a
// process share it.
func (q *Queue) watchElements(t *held.Table) *session.Watch {
	return t.Watch(q.path, session.OnChildren, nil)
}

// watchElement leaves a watch that fires when an element that was found locked
// has gone or has no lock, now or later. It is for all children, so that
// somebody else's does no harm but to keep the element from being had.
func watchElement(t *held.Table, path string) {
	t.Watch(path, session.OnChildren, func(n session.Hint) bool { return n.Children > 0 })
}

// awaitChange waits until there may be something to have that the listing did
// not show: another element, or one whose lock has ended.
//
// Each element of the listing is either claimed in this process or has a watch
// for the end of its lock; if it has neither, that has just ended.
func (q *Queue) awaitChange(ctx context.Context, l *listing) error {
	ends := []reflect.SelectCase{wait(ctx.Done()), wait(l.w.Woken())}
	l.mu.Lock()
	for i := l.head; i < len(l.line) && len(ends) < 1<<16; i++ {
		if l.gone[i] {
			continue
		}
		end := endOfLock(l.t, q.pathOf(l.line[i]))
		if end == nil {
			l.mu.Unlock()
			return nil
		}
		ends = append(ends, wait(end))
	}
	l.mu.Unlock()
	if chosen, _, _ := reflect.Select(ends); chosen == 0 {
		return context.Cause(ctx)
	}
	return nil
}

func wait(ch <-chan struct{}) reflect.SelectCase {
	return reflect.SelectCase{Dir: reflect.SelectRecv, Chan: reflect.ValueOf(ch)}
}

// endOfLock returns a channel that is closed when an element's lock has ended, or nil if no
// owner of the lock is known.
func endOfLock(t *held.Table, path string) <-chan struct{} {
	if cl := t.Find(lockOf(path)); cl != nil {
		return cl.Freed()
	}
	if w := t.Watching(path, session.OnChildren); w != nil {
		return w.Woken()
	}
	return nil
}
