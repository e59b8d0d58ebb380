package session

import (
	"testing"
)

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
