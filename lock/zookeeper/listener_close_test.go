package zookeeper

import (
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// A client is closed while a lease is told of: who hears that it was acquired
// hears of its end.
func TestMutexTellsBothOrNeither(t *testing.T) {
	t.Parallel()
	for round := range 100 {
		c := &Client{keeper: &session.Keeper{Listeners: listener.NewGroup(testLogger())}}
		var told recorder[LockEvent]
		m := c.Mutex("/m", WithListener(told.take))
		l := &Lease{s: &locks{}, done: make(chan struct{}), fence: idem.Fence{Domain: "d", Token: 1}}
		l.attended.Do(func() {}) // there is no znode to look after
		l.mu.Lock()              // telling stops half way
		var wg sync.WaitGroup
		wg.Go(func() { m.tell(l) })
		if round%2 == 0 {
			told.wait(t, 1)
		}
		l.finished, l.err = true, fmt.Errorf("%w: %w", idem.ErrLeaseLost, session.ErrClosed) // Close ends it, and then listens
		close(l.done)
		closed := make(chan error, 1)
		go func() { closed <- c.keeper.Listeners.Close(bounded(t)) }()
		for range 100 { // or less: close has the time to be too early
			runtime.Gosched()
		}
		l.mu.Unlock()
		if err := <-closed; err != nil {
			t.Errorf("close() = %v", err)
		}
		got := told.events()
		wg.Wait()
		if len(got) == 0 && round%2 != 0 {
			continue
		}
		wantStates(t, got, LockAcquired, LockLost)
		if t.Failed() {
			return
		}
	}
}

// A lease is lost while its Acquire returns it, and the next one is told of
// first. The older one's events do not come behind, as if it were held.
func TestMutexTellsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[LockEvent]
	m := r.c.Mutex("/m", WithListener(told.take))
	late, err := m.ln.acquire(bounded(t), exclusive, r.c.owned("/m"), first) // Acquire, before it tells
	if err != nil {
		t.Fatal(err)
	}
	killSession(t, r.c, r.proxy)
	next, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	m.tell(late)
	r.release(next)
	got := told.wait(t, 2)
	if err := r.c.Close(bounded(t)); err != nil { // waits for all of them
		t.Errorf("Close() = %v", err)
	}
	got = append(got, told.events()[len(got):]...)
	wantStates(t, got, LockAcquired, LockReleased)
	for _, ev := range got {
		if ev.Fence != next.Fence() {
			t.Errorf("%+v, want only lease %v", ev, next.Fence())
		}
	}
	if !errors.Is(late.Err(), idem.ErrLeaseLost) {
		t.Errorf("Err() = %v, want %v", late.Err(), idem.ErrLeaseLost)
	}
}
