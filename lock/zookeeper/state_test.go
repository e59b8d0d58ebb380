package zookeeper

import (
	"slices"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// wantLegal says that no event is missing between two that follow each other.
func wantLegal(t testing.TB, evs []ConnectionEvent) {
	t.Helper()
	after := map[ConnectionState][]ConnectionState{
		Connected:   {Suspended, Lost},
		Suspended:   {Reconnected, Lost},
		Reconnected: {Suspended, Lost},
		Lost:        {Reconnected, Connected},
	}
	for i, ev := range evs {
		if bad := ev.State == Suspended || ev.State == Lost; bad != (ev.Err != nil) || ev.At.IsZero() || ev.Session == "" {
			t.Errorf("event %+v", ev)
		}
		if i == 0 {
			continue
		}
		last := evs[i-1]
		if !slices.Contains(after[last.State], ev.State) || ev.At.Before(last.At) {
			t.Errorf("%v at %v after %v at %v", ev.State, ev.At, last.State, last.At)
		}
		if same := ev.Session == last.Session; same == (ev.State == Connected) {
			t.Errorf("%v of session %s after %v of %s", ev.State, ev.Session, last.State, last.Session)
		}
	}
}

func states(evs []ConnectionEvent) (all []ConnectionState) {
	for _, ev := range evs {
		all = append(all, ev.State)
	}
	return all
}

// waitFor waits until the latest state is this one, and there are enough.
func waitFor(t testing.TB, told *recorder[ConnectionEvent], state ConnectionState, atLeast int) []ConnectionEvent {
	t.Helper()
	until(t, state.String(), func() bool {
		evs := told.Events()
		return len(evs) >= atLeast && evs[len(evs)-1].State == state
	})
	evs := told.Events()
	wantLegal(t, evs)
	return evs
}

func TestWatchOverCuts(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[ConnectionEvent]
	r.c.Watch(told.Take)
	r.c.Watch(nil)()
	r.c.Watch(func(ConnectionEvent) { panic("listener") })
	lease := r.take(r.l)
	want := []ConnectionState{Connected}
	waitFor(t, &told, Connected, 1)
	for range 3 {
		r.proxy.Refuse(true)
		r.proxy.Cut()
		want = append(want, Suspended)
		evs := waitFor(t, &told, Suspended, len(want))
		r.proxy.Refuse(false)
		want = append(want, Reconnected)
		evs = waitFor(t, &told, Reconnected, len(evs)+1)
		if got := states(evs); !slices.Equal(got, want) {
			t.Fatalf("states %v, want %v", got, want)
		}
		// It is usable for who was told so.
		if _, err := lease.Check(bounded(t)); err != nil {
			t.Errorf("Check() = %v", err)
		}
	}
	var late recorder[ConnectionEvent]
	stop := r.c.Watch(late.Take)
	if got := states(late.Wait(t, 1)); !slices.Equal(got, []ConnectionState{Reconnected}) {
		t.Errorf("a late listener was told %v", got)
	}
	stop()
	r.release(lease)
	if err := r.c.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	if got := states(told.Events()); !slices.Equal(got, append(want, Lost)) {
		t.Errorf("states %v after Close(), want %v and then lost", got, want)
	}
	if got := late.Events(); len(got) != 1 {
		t.Errorf("told %v after stop", got)
	}
}

// The connection is a black hole until nothing can be trusted any more.
func TestWatchOverABlackHole(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3*time.Second)
	var told recorder[ConnectionEvent]
	r.c.Watch(told.Take)
	lease := r.take(r.l)
	r.proxy.BlackHole(testserver.Both)
	await(t, "lease lost", lease.Done())
	evs := waitFor(t, &told, Lost, 2)
	if slices.Contains(states(evs), Reconnected) {
		t.Errorf("states %v over a black hole", states(evs))
	}
	r.proxy.Restore()
	until(t, "usable again", func() bool { return r.l.Ping(bounded(t)) == nil })
	until(t, "told so", func() bool {
		last := told.Events()[len(told.Events())-1].State
		return last == Connected || last == Reconnected
	})
	wantLegal(t, told.Events())
}

// Trust has lapsed, but the session turns out to be alive: its leases are lost,
// it is not.
func TestWatchLivingSessionLapse(t *testing.T) {
	t.Parallel()
	r, clock := stillFor(t, 3*time.Second)
	lease := r.take(r.l)
	var told recorder[ConnectionEvent]
	r.c.Watch(told.Take)
	waitFor(t, &told, Connected, 1)
	lapse(t, lease, clock)
	evs := waitFor(t, &told, Reconnected, 3)
	if got := states(evs); !slices.Equal(got, []ConnectionState{Connected, Lost, Reconnected}) {
		t.Errorf("states %v", got)
	}
}

// Whatever happens how fast, what is told fits together.
func TestWatchMissesNothing(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[ConnectionEvent]
	r.c.Watch(told.Take)
	n := len(waitFor(t, &told, Connected, 1))
	for range 10 {
		// What a Ping says is not enough here: it may be answered over a
		// connection that is not confirmed yet, and a cut then is no news.
		r.proxy.Cut()
		n = len(waitFor(t, &told, Reconnected, n+2))
	}
	killSession(t, r.c, r.proxy)
	waitFor(t, &told, Connected, n+2)
}
