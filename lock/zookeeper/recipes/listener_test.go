package recipes

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

func wantStates(t testing.TB, got []Event, want ...State) {
	t.Helper()
	var states []State
	for _, ev := range got {
		states = append(states, ev.State)
		if lost := ev.State == Lost; lost != errors.Is(ev.Err, driver.ErrLeaseLost) {
			t.Errorf("event %+v with the error %v", ev, ev.Err)
		}
	}
	if !slices.Equal(states, want) {
		t.Errorf("events %v, want %v", states, want)
	}
}

func TestMutexTellsItsListener(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[Event]
	m := MustNewMutex(r.Client, "/m", nil, WithListener(nil), WithListener(told.Take), WithListener(func(Event) { panic("listener") }))
	first, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	recipetest.Release(r, first)
	recipetest.Release(r, first)
	second, err := m.TryAcquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.TryAcquire(bounded(t)); !errors.Is(err, driver.ErrLocked) {
		t.Fatalf("TryAcquire() = %v, want ErrLocked", err)
	}
	killSession(t, r.Client, r.Proxy)
	second.ReleaseInBackground()
	got := told.Wait(t, 4)
	wantStates(t, got, Acquired, Released, Acquired, Lost)
	for i, l := range []*Lease{first, first, second, second} {
		if got[i].Fence != l.Fence() || got[i].Path != "/m" {
			t.Errorf("event %d is %+v, want fence %v of /m", i, got[i], l.Fence())
		}
	}
}

// Holders with a listener, leaders, and holders that have called Revoked notice at once that an
// operator has deleted their znode, also if the connection breaks in between.
func TestDeletedPlaceIsNoticedAtOnce(t *testing.T) {
	t.Parallel()
	for name, take := range map[string]func(c *zookeeper.Client, listener Option) (*Lease, error){
		"listener": func(c *zookeeper.Client, listener Option) (*Lease, error) {
			return MustNewMutex(c, "/m", listener).Acquire(context.Background())
		},
		"leader": func(c *zookeeper.Client, _ Option) (*Lease, error) {
			return MustNewElection(c, "/m", "me").Campaign(context.Background())
		},
		"Revoked": func(c *zookeeper.Client, _ Option) (*Lease, error) {
			l, err := MustNewMutex(c, "/m").Acquire(context.Background())
			if err == nil {
				l.Revoked()
			}
			return l, err
		},
	} {
		for _, away := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, away %t", name, away), func(t *testing.T) {
				t.Parallel()
				r := newRig(t, 0)
				var told recorder[Event]
				l, err := take(r.Client, WithListener(told.Take))
				if err != nil {
					t.Fatal(err)
				}
				ctx := l.Context(t.Context())
				if away {
					r.Proxy.Refuse(true)
					r.Proxy.Cut()
				}
				if err := r.Raw.Delete(pathOf(l), -1); err != nil {
					t.Fatal(err)
				}
				r.Proxy.Refuse(false)
				await(t, "end of the context", ctx.Done())
				r.wantLost(l)
				if !errors.Is(context.Cause(ctx), driver.ErrLeaseLost) {
					t.Errorf("cause %v, want %v", context.Cause(ctx), driver.ErrLeaseLost)
				}
				if name == "listener" {
					wantStates(t, told.Wait(t, 2), Acquired, Lost)
				}
			})
		}
	}
}

// A listener that is slow holds up nobody, misses nothing, and is waited for.
func TestCloseWaitsForListeners(t *testing.T) {
	t.Parallel()
	c := open(t, sharedConfig(t))
	var told recorder[Event]
	entered, release := make(chan struct{}), make(chan struct{})
	var once sync.Once
	m := MustNewMutex(c, "/m", WithListener(func(ev Event) {
		once.Do(func() { close(entered) })
		<-release
		told.Take(ev)
	}))
	want := []State{}
	for range 10 {
		l, err := m.Acquire(bounded(t))
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Release(bounded(t)); err != nil {
			t.Fatal(err)
		}
		want = append(want, Acquired, Released)
	}
	if _, err := m.Acquire(bounded(t)); err != nil { // ended by Close
		t.Fatal(err)
	}
	want = append(want, Acquired, Lost)
	await(t, "first event", entered)
	s := sessionOf(c)
	closed := make(chan error, 1)
	go func() { closed <- c.Close(bounded(t)) }()
	await(t, "session over", s.Session.Status.Over())
	select {
	case err := <-closed:
		t.Errorf("Close() = %v while a listener was running", err)
	default:
	}
	close(release)
	if err := <-closed; err != nil {
		t.Errorf("Close() = %v", err)
	}
	wantStates(t, told.Events(), want...)
	if _, err := m.Acquire(canceled(t)); err == nil {
		t.Error("Acquire() after Close() succeeded")
	}
	wantStates(t, told.Events(), want...)
}

// A session may end at the moment when a new lease is told. Neither waits for the other.
func TestSessionEndsWhileALeaseIsTold(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[Event]
	m := MustNewMutex(r.Client, "/m")
	lease, err := m.Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	WithListener(told.Take)(m.ln)
	s := sessionOf(r.Client)
	lease.place.mu.Lock() // holds up tell before it watches the znode
	var wg sync.WaitGroup
	wg.Go(func() { m.ln.tell(lease) })
	told.Wait(t, 1)
	wg.Go(s.Session.Trust.GiveUp)
	await(t, "end of the lease", lease.Done())
	time.Sleep(10 * time.Millisecond) // for the rest of the end
	lease.place.mu.Unlock()
	finished := make(chan struct{})
	go func() {
		wg.Wait()
		close(finished)
	}()
	await(t, "end of the session", finished)
	await(t, "session over", s.Session.Status.Over())
	wantStates(t, told.Wait(t, 2), Acquired, Lost)
}
