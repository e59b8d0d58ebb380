package zookeeper

import (
	"context"
	"fmt"
	"runtime"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// view is a line as a deciding read found it. Those who came to look before it was
// sent share it: it shows what was there when they came, or later.
type view struct {
	done chan struct{}
	next *view // for those who came while this one was under way

	// Set before done is closed, and not changed any more.
	line []position
	sent leaseclock.Instant
	err  error
}

// look reads the line of a place.
func (s *session) look(ctx context.Context, l *Lease) (*view, error) {
	v := s.viewOf(l.place.line.path)
	select {
	case <-v.done:
	case <-ctx.Done():
		return nil, s.notYet(ctx, l, nil)
	case <-s.over:
		return nil, s.notYet(ctx, l, fmt.Errorf("%w: %w", idem.ErrUnavailable, s.reason()))
	}
	if v.err != nil {
		return nil, s.notYet(ctx, l, v.err)
	}
	l.place.line.saw(v)
	return v, nil
}

// A line that was longer than longLine within the last longAgo is long. Who queues up
// there is in no hurry.
const (
	longLine = 4
	longAgo  = 100 * time.Millisecond
)

func (ln *line) saw(v *view) {
	if len(v.line) > longLine {
		ln.long.Store(time.Now().Add(longAgo).UnixNano())
	}
}

func (ln *line) isLong() bool { return time.Now().UnixNano() < ln.long.Load() }

// viewOf returns the view of a line that is read next.
func (s *session) viewOf(path string) *view {
	s.mu.Lock()
	defer s.mu.Unlock()
	under := s.views[path]
	if under != nil {
		if under.next == nil {
			under.next = &view{done: make(chan struct{})}
		}
		return under.next
	}
	v := &view{done: make(chan struct{})}
	if s.why != nil {
		v.err = fmt.Errorf("%w: %w", idem.ErrUnavailable, s.why)
		close(v.done)
		return v
	}
	// What is under way is nobody's to join: who comes from here on is shown next.
	s.views[path] = &view{next: v}
	s.wg.Go(func() { s.show(path) })
	return v
}

// show reads a line as often as somebody wants to see it.
func (s *session) show(path string) {
	for {
		runtime.Gosched() // those who were answered together come together
		s.mu.Lock()
		v := s.views[path].next
		if v == nil {
			delete(s.views, path)
			s.mu.Unlock()
			return
		}
		s.views[path] = v
		s.mu.Unlock()
		v.sent = s.cfg.now()
		n, err := s.decide(path, ofChildren)
		v.line, v.err = positions(n.names), err
		close(v.done)
	}
}
