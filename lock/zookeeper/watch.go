package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// watch is what all waiters for one path share: one read that leaves a watch
// with the server. It is woken by any event on the path, by a reconnect, and by
// the session's end; all of them only mean "look again". The server's watch
// cannot be taken back, so a watch that all waiters have left is kept for the
// next ones until it fires. It lasts no longer than the lock that it is for.
type watch struct {
	woken chan struct{}
	// armed is closed when the watch is there, or could not be made; names are
	// then the children of a line. Both are for lines alone.
	armed chan struct{}
	names []string
	// failed is why names is not a queue's listing; set before armed is closed.
	failed error
	crowd  int   // waiters so far
	free   bool  // the read found no znode; set before woken is closed, like err
	err    error // why the read failed
}

// Wait implements [idem.Locker]. Waiters of one process share a watch, and
// after a release with several waiting each pauses for a random moment and
// looks again, since a create that loses is a logged write too. A marker by
// itself looks free, and so does whatever else is in place of the lock and stays.
func (l *Locker) Wait(ctx context.Context, id idem.KeyID) error {
	path := l.c.cfg.lockPath(id)
	for {
		if err := ctx.Err(); err != nil {
			return err
		}
		s, err := l.c.usable()
		if err != nil {
			return err
		}
		free, crowd, err := s.watchLock(ctx, path)
		if err == nil {
			err = s.awaitUp(ctx) // so that the caller can make use of it
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case s.isOver():
			return nil // another session may tell
		case err != nil:
			return fmt.Errorf("%w: %w", idem.ErrUnavailable, err)
		case free || crowd <= 1:
			return nil
		}
		select {
		case <-time.After(rand.N(min(time.Duration(crowd)*time.Millisecond, 50*time.Millisecond))):
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// watchLock waits until the lock at path is free, or may be. crowd is how many
// waited with this caller.
func (s *session) watchLock(ctx context.Context, path string) (free bool, crowd int, err error) {
	s.mu.Lock()
	if sl := s.slots[path]; sl != nil {
		// Held, or wanted, in this process: no need to ask the server.
		sl.crowd++
		s.mu.Unlock()
		err := s.await(ctx, sl.freed)
		s.mu.Lock()
		defer s.mu.Unlock()
		return false, sl.crowd, err
	}
	w := s.watchLocked(path, func(w *watch, gen uint64) { s.armLock(path, w, gen) })
	w.crowd++
	s.mu.Unlock()

	err = s.await(ctx, w.woken)
	s.mu.Lock()
	defer s.mu.Unlock()
	if err == nil {
		err = w.err
	}
	return w.free, w.crowd, err
}

// watchLocked returns the watch under a key, and has it armed when it is new.
// Needs mu.
func (s *session) watchLocked(key string, arm func(w *watch, gen uint64)) *watch {
	w := s.watches[key]
	if w == nil {
		w = &watch{woken: make(chan struct{}), armed: make(chan struct{})}
		s.watches[key] = w
		if gen := s.gen; s.why == nil {
			s.wg.Go(func() { arm(w, gen) })
		}
	}
	return w
}

// armWatch makes the read that leaves the watch. When the connection breaks
// before it is answered, the reconnect wakes the waiters.
func (s *session) armWatch(path string, w *watch, gen uint64) {
	n, err := s.hint(path, ofNodeW)
	s.armed(path, w, gen, n.exists, err)
}

// armLock is armWatch for the lock of a key: at path, or below the marker that is
// there.
//
// A marker itself is never watched. It may stay for days, and each watch left
// with it would stay as long. So the first read leaves none.
func (s *session) armLock(path string, w *watch, gen uint64) {
	n, err := s.hint(path, ofNode)
	switch {
	case err != nil || !n.exists:
	case n.session != 0:
		n, err = s.hint(path, ofNodeW)
		if err == nil && n.exists && n.session == 0 { // the key has been marked meanwhile
			n, err = s.hint(path+lockChild, ofNodeW)
		}
	default:
		n, err = s.hint(path+lockChild, ofNodeW)
	}
	s.armed(path, w, gen, n.exists, err)
}

// armed is told how the read went that was to leave the watch under a key.
func (s *session) armed(key string, w *watch, gen uint64, exists bool, err error) {
	if err == nil && exists {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.watches[key] != w || err != nil && (!s.connected || s.gen != gen) {
		return
	}
	w.free, w.err = err == nil, err
	s.fire(key)
}

// childrenOf follows a path in the key of a watch for its children.
const childrenOf = "/*"

// fire wakes the waiters of a path. Needs mu.
func (s *session) fire(path string) {
	if w := s.watches[path]; w != nil {
		delete(s.watches, path)
		close(w.woken)
	}
}

// fireAll wakes all waiters. Needs mu.
func (s *session) fireAll() {
	for path := range s.watches {
		s.fire(path)
	}
}
