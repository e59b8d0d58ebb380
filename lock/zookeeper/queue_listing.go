package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"sync"

	"github.com/idemkeeper/idemkeeper/idem"
)

// listing is a list of a queue's elements, and how far this process has worked
// it off. What is offered later comes behind all of them, so that a listing may
// be worked off to its end although it is out of date: it shows the head of the
// queue as long as it shows anything.
type listing struct {
	s *session
	w *watch // fires when the list is out of date

	mu   sync.Mutex
	line []position
	gone []bool
	head int // all before it are gone
}

// stale reports whether the queue has changed since.
func (l *listing) stale() bool {
	select {
	case <-l.w.woken:
		return true
	default:
		return false
	}
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
		if l.gone[i] || l.s.watched(path+childrenOf) {
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
func (q *Queue) list(ctx context.Context, s *session) (*listing, error) {
	w := q.watchElements(s)
	if err := s.await(ctx, w.armed); err != nil {
		return nil, err
	}
	if w.failed != nil && !errors.Is(w.failed, errNoParent) {
		return nil, fmt.Errorf("%w: list: %w", idem.ErrUnavailable, w.failed)
	}
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.w != w {
		line := positions(w.names)
		line = slices.DeleteFunc(line, func(p position) bool { return p.role != element })
		q.latest = &listing{s: s, w: w, line: line, gone: make([]bool, len(line))}
	}
	return q.latest, nil
}

// cached returns the latest listing of a session, up to date or not. It is empty
// at first.
func (q *Queue) cached(s *session) *listing {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.latest == nil || q.latest.s != s {
		return &listing{s: s}
	}
	return q.latest
}

// watchElements returns the watch that comes with a listing. All callers of a
// process share it.
func (q *Queue) watchElements(s *session) *watch {
	return s.watchChildren(q.ln.path, func(hint) bool { return true })
}

// watchElement leaves a watch that fires when an element that was found locked
// has gone or has no lock, now or later. It is for all children, so that
// somebody else's does no harm but to keep the element from being had.
func (s *session) watchElement(path string) {
	s.watchChildren(path, func(n hint) bool { return n.children > 0 })
}

// watchChildren returns the watch for a znode's children. It fires at once
// unless the znode is there and found fit.
func (s *session) watchChildren(path string, fit func(hint) bool) *watch {
	key := path + childrenOf
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watchLocked(key, func(w *watch, gen uint64) {
		n, err := s.hint(path, ofChildrenW)
		w.names, w.failed = n.names, err
		if err == nil && !n.exists {
			w.failed = errNoParent
		}
		s.armed(key, w, gen, n.exists && fit(n), err) // first, so that nobody takes it for one that lasts
		close(w.armed)
	})
}

// watched reports whether there is a watch under a key that has not fired.
func (s *session) watched(key string) bool {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.watches[key] != nil
}

// awaitChange waits until there may be something to have that the listing did
// not show: another element, or one whose lock has ended.
//
// Each element of the listing is either claimed in this process or has a watch
// for the end of its lock; if it has neither, that has just ended.
func (q *Queue) awaitChange(ctx context.Context, l *listing) error {
	ends := []reflect.SelectCase{wait(ctx.Done()), wait(l.w.woken)}
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
func (s *session) endOfLock(path string) <-chan struct{} {
	s.mu.Lock()
	defer s.mu.Unlock()
	if sl := s.slots[lockOf(path)]; sl != nil {
		return sl.freed
	}
	if w := s.watches[path+childrenOf]; w != nil {
		return w.woken
	}
	return nil
}
