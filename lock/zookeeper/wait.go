package zookeeper

import (
	"context"
	"fmt"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// Wait implements [idem.Locker]. Waiters of one process share a watch. After a release
// with several waiting, each pauses for a random moment and looks again, since a create
// that loses is a logged write too. A marker by itself looks free, and so does any other
// znode that is in the place of the lock and stays.
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
		free, crowd, err := s.awaitFree(ctx, path)
		if err == nil {
			err = s.AwaitUp(ctx) // so that the caller can make use of it
		}
		switch {
		case err != nil && ctx.Err() != nil:
			return ctx.Err()
		case s.Err() != nil:
			return nil //nolint:nilerr // another session may tell
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

// lockWaits are the waits of a session, by the path of the lock.
type lockWaits struct {
	mu  sync.Mutex
	all map[string]*lockWait
}

// lockWait is what all waiters for one lock share.
type lockWait struct {
	over  chan struct{} // closed when it is time to look again, and free and err are set
	free  bool          // there was no lock
	err   error
	crowd int // waiters so far; guarded by lockWaits.mu
}

// awaitFree waits until the lock at path is free, or may be. crowd is how many waited
// with this caller.
func (s *locks) awaitFree(ctx context.Context, path string) (free bool, crowd int, err error) {
	ws := &s.waits
	ws.mu.Lock()
	w := ws.all[path]
	if w == nil {
		w = &lockWait{over: make(chan struct{})}
		if ws.all == nil {
			ws.all = make(map[string]*lockWait)
		}
		ws.all[path] = w
		s.Further(func() {
			w.free, w.err = s.lockEnds(path)
			ws.mu.Lock()
			defer ws.mu.Unlock()
			delete(ws.all, path)
			close(w.over)
		})
	}
	w.crowd++
	ws.mu.Unlock()

	if err := s.Await(ctx, w.over); err != nil {
		return false, 0, err
	}
	ws.mu.Lock()
	defer ws.mu.Unlock()
	return w.free, w.crowd, w.err
}

// lockEnds waits for the end of the lock at path, or below the marker that is there. free
// is true if there was no lock.
//
// It never watches a marker. A marker may stay for days, and a watch that is left with it
// would stay as long. So the first read leaves no watch.
func (s *locks) lockEnds(path string) (free bool, err error) {
	if cl := s.Find(path); cl != nil { // held or wanted in this process
		<-cl.Freed()
		return false, nil
	}
	at := path
	n, err := s.Look(path, session.OfNode)
	if err == nil && n.Exists && n.Session == 0 {
		at = path + lockChild
	}
	for err == nil && n.Exists {
		watch := s.Watch(at, session.OnNode, nil)
		<-watch.Armed()
		n, err = watch.Found()
		if at == path && err == nil && n.Exists && n.Session == 0 { // the key has been marked meanwhile
			at = path + lockChild
			continue
		}
		<-watch.Woken() // at once, if there is no lock
		if err != nil && !session.Refusal(err) {
			n.Exists, err = true, nil // the connection was lost meanwhile
		}
		break
	}
	return err == nil && !n.Exists, err
}
