package session

import (
	"errors"
	"fmt"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"
)

// A watch that could not be made is woken at once, so that its waiters look again. If the connection
// broke, the next one wakes it. Until then its waiters would look in vain.
func TestWatchThatWasNotMadeIsWoken(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		woken := func(w *Watch) bool {
			await(t, "an answer to the watch", w.Armed())
			synctest.Wait()
			select {
			case <-w.Woken():
				return true
			default:
				return false
			}
		}
		wantWoken := func(w *Watch, want error) {
			t.Helper()
			if !woken(w) {
				t.Error("the watch is not woken")
			}
			if _, err := w.Found(); !errors.Is(err, want) {
				t.Errorf("Found() = %v, want %v", err, want)
			}
		}
		w := s.Watches.Of("/a", OnNode, nil)
		if woken(w) || s.Watches.Of("/a", OnNode, nil) != w {
			t.Error("a watch without a connection is woken before there is one")
		}
		s.Watches.fireAll() // as a confirmed connection does
		wantWoken(w, errNotConnected)
		reconnect(s)
		w = s.Watches.Of("/a", OnNode, nil) // the library refuses the read, and the connection stays
		wantWoken(w, zk.ErrConnectionClosed)
		s.requests.onState(zk.StateDisconnected)
		s.Watches.Of("/b", OnExists, nil)
		if watched := s.Watches.Watched(); len(watched) != 1 || watched[WatchKey{"/b", OnExists}] == nil {
			t.Errorf("Watched() = %v, want the one that waits for a connection", watched)
		}
	})
}

// The first acknowledged write over another connection wakes all watches, since they missed what
// changed in between. The library may have lost them.
func TestNextConnectionWakesAllWatches(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	w := &Watch{armed: make(chan struct{}), woken: make(chan struct{})}
	r.s.Watches.mu.Lock()
	r.s.Watches.all[WatchKey{"/nothing", OnNode}] = w // it has no watch at the server
	r.s.Watches.mu.Unlock()
	r.proxy.Cut()
	await(t, "the watch", w.Woken())
}

// A watch sleeps if its read found what the waiter expects, until that changes. Otherwise it is
// woken at once.
func TestWatchSleepsOnWhatFits(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	yes, no := func(Hint) bool { return true }, func(Hint) bool { return false }
	for i, tt := range []struct {
		kind   Kind
		exists bool
		fit    func(Hint) bool
		sleeps bool
	}{
		{OnNode, true, nil, true},
		{OnNode, true, yes, true},
		{OnNode, true, no, false},
		{OnNode, false, yes, false},
		{OnExists, true, yes, true},
		{OnExists, false, yes, true},
		{OnExists, false, no, false},
		{OnChildren, true, nil, true},
		{OnChildren, false, nil, false},
	} {
		path := fmt.Sprintf("%s%d", r.path, i)
		if tt.exists {
			r.create(t, path, 0)
		}
		w := r.s.Watches.Of(path, tt.kind, tt.fit)
		await(t, "the read of the watch", w.Armed())
		if n, err := w.Found(); err != nil || n.Exists != tt.exists {
			t.Errorf("%d: Found() = %+v, %v, want a znode: %v", i, n, err, tt.exists)
		}
		if sleeps := r.s.Watches.all[WatchKey{path, tt.kind}] == w; sleeps != tt.sleeps {
			t.Errorf("%d: the watch sleeps: %v, want %v", i, sleeps, tt.sleeps)
		}
		if tt.sleeps {
			var change any = &zk.CreateRequest{Path: path, Acl: zk.WorldACL(zk.PermAll)}
			if tt.exists {
				change = &zk.DeleteRequest{Path: path, Version: -1}
			}
			if got := r.s.Writes.Do(change); got.Outcome != Applied {
				t.Fatalf("%d: Write() = %+v", i, got)
			}
		}
		await(t, fmt.Sprintf("watch %d", i), w.Woken())
	}
}
