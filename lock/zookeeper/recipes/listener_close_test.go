package recipes

import (
	"errors"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A client is closed while a lease is told of: who hears that it was acquired
// hears of its end.
func TestMutexTellsBothOrNeither(t *testing.T) {
	t.Parallel()
	for round := range 20 {
		c := open(t, sharedConfig(t))
		var told recorder[Event]
		m := MustNewMutex(c, "/m", WithListener(told.Take))
		l, err := m.ln.try(bounded(t), exclusive, func(l *Lease) error { return l.awaitTurn(bounded(t), first) }) // Acquire, before it tells
		if err != nil {
			t.Fatal(err)
		}
		var wg sync.WaitGroup
		wg.Go(func() { m.ln.tell(l) })
		if round%2 == 0 {
			told.Wait(t, 1)
		}
		if err := c.Close(bounded(t)); err != nil {
			t.Errorf("Close() = %v", err)
		}
		got := told.Events()
		wg.Wait()
		if len(got) > 0 {
			wantStates(t, got, Acquired, Lost)
		}
	}
}

// A lease is lost while its Acquire returns it, and the next one is told of
// first. The older one's events do not come behind, as if it were held.
func TestMutexTellsInOrder(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[Event]
	m := MustNewMutex(r.Client, "/m", WithListener(told.Take))
	late, err := m.ln.try(bounded(t), exclusive, func(l *Lease) error { return l.awaitTurn(bounded(t), first) }) // Acquire, before it tells
	if err != nil {
		t.Fatal(err)
	}
	killSession(t, r.Client, r.Proxy)
	next, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	m.ln.tell(late)
	recipetest.Release(r, next)
	got := told.Wait(t, 2)
	if err := r.Client.Close(bounded(t)); err != nil { // waits for all of them
		t.Errorf("Close() = %v", err)
	}
	got = append(got, told.Events()[len(got):]...)
	wantStates(t, got, Acquired, Released)
	for _, ev := range got {
		if ev.Fence != next.Fence() {
			t.Errorf("%+v, want only lease %v", ev, next.Fence())
		}
	}
	if !errors.Is(late.Err(), driver.ErrLeaseLost) {
		t.Errorf("Err() = %v, want %v", late.Err(), driver.ErrLeaseLost)
	}
}
