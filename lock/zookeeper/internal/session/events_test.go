package session

import (
	"slices"
	"testing"
	"testing/synctest"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// Each state is told once, and nothing is suspended that was lost.
func TestConnectionTellsChanges(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &Keeper{Listeners: listener.NewGroup(testLogger())}
		var told []State
		k.Watch(func(ev Event) { told = append(told, ev.State) })
		want := []State{0} // there is no session yet
		for _, step := range []struct {
			state State
			news  bool
		}{
			{Connected, true}, {Reconnected, false},
			{Suspended, true}, {Suspended, false}, {Reconnected, true}, {Reconnected, false},
			{Suspended, true}, {Lost, true}, {Suspended, false}, {Lost, false}, {Reconnected, true},
			{Lost, true}, {Suspended, false}, {Connected, true}, {Lost, true}, {Connected, true},
			{Connected, true}, // of the next session
		} {
			k.feed.tell(Event{State: step.state})
			if step.news {
				want = append(want, step.state)
			}
		}
		synctest.Wait()
		if !slices.Equal(told, want) {
			t.Errorf("told %v, want %v", told, want)
		}
	})
}

// Each watcher is told, from the present state on, until it stops.
func TestEveryWatcherIsTold(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		k := &Keeper{Listeners: listener.NewGroup(testLogger())}
		var told [2][]State
		var stop [2]func()
		for i := range stop {
			stop[i] = k.Watch(func(ev Event) { told[i] = append(told[i], ev.State) })
		}
		k.feed.tell(Event{State: Connected})
		synctest.Wait()
		stop[0]()
		k.feed.tell(Event{State: Lost})
		synctest.Wait()
		if !slices.Equal(told[0], []State{0, Connected}) || !slices.Equal(told[1], []State{0, Connected, Lost}) {
			t.Errorf("told %v, want the first watcher to be told until it stops, and the second all", told)
		}
		if n := len(k.feed.watchers); n != 1 {
			t.Errorf("%d watchers are kept after one has stopped, want 1", n)
		}
		k.Watch(nil)()
	})
}

func TestStateNames(t *testing.T) {
	t.Parallel()
	for state, want := range map[State]string{
		0: "ConnectionState(0)", Connected: "connected", Suspended: "suspended", Reconnected: "reconnected", Lost: "lost", 5: "ConnectionState(5)",
	} {
		if got := state.String(); got != want {
			t.Errorf("State(%d).String() = %q, want %q", uint8(state), got, want)
		}
	}
}
