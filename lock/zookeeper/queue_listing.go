package zookeeper

import (
	"context"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// listing is a list of a queue's elements, and how far this process has worked
// it off. What is offered later comes behind all of them, so that a listing may
// be worked off to its end although it is out of date: it shows the head of the
// queue as long as it shows anything.
type listing struct {
	s *locks
	w *session.Watch // fires when the list is out of date

	mu   sync.Mutex
	line []position
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
// slot is nil if there is none.
func (q *Queue) claim(l *listing) (i int, sl *slot, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i := l.head; i < len(l.line); i++ {
		path := q.pathOf(l.line[i])
		if l.gone[i] || l.s.Watching(path, session.OnChildren) != nil {
			continue
		}
		sl, _, _, err := l.s.claim(lockOf(path))
		if sl != nil || err != nil {
			return i, sl, err
		}
	}
	return 0, nil, nil
}

// list returns the latest listing if it is up to date, or else a new one.
func (q *Queue) list(ctx context.Context, s *locks) (*listing, error) {
	w := q.watchElements(s)
	if err := s.Await(ctx, w.Armed()); err != nil {
		return nil, err
	}
	n, err := w.Found()
	if err != nil {
		return nil, fmt.Errorf("%w: list: %w", idem.ErrUnavailable, err)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.w != w {
		line := positions(n.Names)
		line = slices.DeleteFunc(line, func(p position) bool { return p.role != element })
		q.latest = &listing{s: s, w: w, line: line, gone: make([]bool, len(line))}
	}
	return q.latest, nil
}

// cached returns the latest listing of a session, up to date or not. It is empty
// at first.
func (q *Queue) cached(s *locks) *listing {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.s != s {
		return &listing{s: s}
	}
	return q.latest
}

// watchElements returns the watch that comes with a listing. All callers of a
// process share it.
func (q *Queue) watchElements(s *locks) *session.Watch {
	return s.Watch(q.ln.path, session.OnChildren, nil)
}

// watchElement leaves a watch that fires when an element that was found locked
// has gone or has no lock, now or later. It is for all children, so that
// somebody else's does no harm but to keep the element from being had.
func (s *locks) watchElement(path string) {
	s.Watch(path, session.OnChildren, func(n session.Hint) bool { return n.Children > 0 })
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
		end := l.s.endOfLock(q.pathOf(l.line[i]))
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

// endOfLock returns a channel that is closed when an element's lock has ended,
// or nil if nobody is known to have it.
func (s *locks) endOfLock(path string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.slots[lockOf(path)]; sl != nil {
		return sl.freed
	}
	if w := s.Watching(path, session.OnChildren); w != nil {
		return w.Woken()
	}
	return nil
}
