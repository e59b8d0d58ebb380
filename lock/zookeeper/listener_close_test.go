package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Events are posted at the moment at which close has nothing to wait for any
// more. Each is either delivered before close returns, or never.
func TestListenersCloseAmidEvents(t *testing.T) {
	t.Parallel()
	for range 100 {
		synctest.Test(t, func(t *testing.T) {
			ls := newListeners(testLogger())
			var told recorder[int]
			slow := func(n int) {
				told.take(n)
				time.Sleep(time.Hour) // of the bubble's
				told.take(-n)
			}
			m, other := newMailbox(ls, slow), newMailbox(ls, slow)
			m.post(1)
			idle := ls.busy.idle()
			go func() { <-idle; m.post(2) }()
			go func() { <-idle; other.post(3) }()
			synctest.Wait() // they hear of it first
			if err := ls.close(context.Background()); err != nil {
				t.Errorf("close() = %v", err)
			}
			done := told.events()
			sum := 0
			for _, n := range done {
				sum += n
			}
			if sum != 0 {
				t.Errorf("told %v when close() returned: one is under way", done)
			}
			time.Sleep(24 * time.Hour)
			if got := told.events(); !slices.Equal(got, done) {
				t.Errorf("told %v, and %v when close() returned", got, done)
			}
		})
	}
}

// A client is closed while a lease is told of: who hears that it was acquired
// hears of its end.
func TestMutexTellsBothOrNeither(t *testing.T) {
	t.Parallel()
	for round := range 100 {
		c := &Client{listeners: newListeners(testLogger())}
		var told recorder[LockEvent]
		m := c.Mutex("/m", WithListener(told.take))
		l := &Lease{s: &session{why: errClosed}, done: make(chan struct{}), fence: idem.Fence{Domain: "d", Token: 1}}
		l.mu.Lock() // telling stops half way
		var wg sync.WaitGroup
		wg.Go(func() { m.tell(l) })
		if round%2 == 0 {
			told.wait(t, 1)
		}
		l.finished, l.err = true, fmt.Errorf("%w: %w", idem.ErrLeaseLost, errClosed) // Close ends it, and then listens
		close(l.done)
		closed := make(chan error, 1)
		go func() { closed <- c.listeners.close(bounded(t)) }()
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
