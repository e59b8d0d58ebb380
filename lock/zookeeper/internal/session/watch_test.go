package session

import (
	"errors"
	"fmt"
	"maps"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"
)

// An event wakes the watches that it concerns. An event of a session is none of a path.
func TestEventWakesItsWatches(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		reconnect(s)
		other := WatchKey{"/other", OnNode}
		for _, tt := range []struct {
			ev    zk.Event
			woken []Kind
		}{
			{zk.Event{Type: zk.EventNodeCreated, Path: "/a"}, []Kind{OnNode, OnExists, OnChildren}},
			{zk.Event{Type: zk.EventNodeDeleted, Path: "/a"}, []Kind{OnNode, OnExists, OnChildren}},
			{zk.Event{Type: zk.EventNodeDataChanged, Path: "/a"}, []Kind{OnNode, OnExists}},
			{zk.Event{Type: zk.EventNodeChildrenChanged, Path: "/a"}, []Kind{OnChildren}},
			{zk.Event{Type: zk.EventNotWatching, Path: "/a"}, nil},
			{zk.Event{Type: zk.EventSession, State: zk.StateExpired, Path: "/a"}, nil}, // from a server
		} {
			all := make(map[WatchKey]*Watch)
			for _, key := range []WatchKey{{"/a", OnNode}, {"/a", OnExists}, {"/a", OnChildren}, other} {
				all[key] = &Watch{woken: make(chan struct{})}
			}
			s.Watches.all = maps.Clone(all)
			want := make(map[WatchKey]bool)
			for _, kind := range tt.woken {
				want[WatchKey{"/a", kind}] = true
			}
			s.Watches.onEvent(tt.ev)
			for key, w := range all {
				woken := false
				select {
				case <-w.woken:
					woken = true
				default:
				}
				if woken != want[key] || (s.Watches.all[WatchKey{key.Path, key.Kind}] == nil) != woken {
					t.Errorf("after %+v: the watch of %v is woken: %v, kept: %v", tt.ev, key, woken, s.Watches.all[WatchKey{key.Path, key.Kind}] != nil)
				}
			}
		}
		if err := s.Status.Err(); err != nil {
			t.Errorf("Err() = %v after an event that a server sent", err)
		}
		s.Watches.onEvent(zk.Event{Type: zk.EventSession, State: zk.StateExpired, Server: "here"})
		if err := s.Status.Err(); !errors.Is(err, ErrExpired) {
			t.Errorf("Err() = %v after the library's event, want %v", err, ErrExpired)
		}
	})
}

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
