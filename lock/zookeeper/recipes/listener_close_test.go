package recipes

import (
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

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
