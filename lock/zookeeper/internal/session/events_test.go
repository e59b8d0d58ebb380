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
