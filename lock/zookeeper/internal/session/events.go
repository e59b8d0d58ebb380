package session

import (
	"fmt"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/listener"
)

// State is how a keeper's sessions stand. Package zookeeper explains the states, and
// exports them as ConnectionState.
type State uint8

// The states, and their order:
//
//	Connected, Reconnected ──▶ Lost, Suspended
//	Lost                   ──▶ Connected (a new session), Reconnected (the same)
//	Suspended              ──▶ Lost, Reconnected
const (
	Connected State = iota + 1
	Suspended
	Reconnected
	Lost
)

var stateNames = [...]string{Connected: "connected", Suspended: "suspended", Reconnected: "reconnected", Lost: "lost"}

// String returns "connected", "suspended", "reconnected" or "lost".
func (s State) String() string {
	if s < Connected || s > Lost {
		return fmt.Sprintf("ConnectionState(%d)", uint8(s))
	}
	return stateNames[s]
}

// Event is a change of state.
type Event struct {
	State   State
	Session string    // the session's ID, as in the servers' logs
	At      time.Time // when this process knew
	Err     error     // why, of Suspended and Lost
}

// feed passes the changes of state on to watchers. Its mu is taken with a session's lock
// held.
type feed struct {
	mu       sync.Mutex
	last     Event
	watchers map[*listener.Mailbox[Event]]struct{}
}

func (f *feed) add(box *listener.Mailbox[Event]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.watchers == nil {
		f.watchers = make(map[*listener.Mailbox[Event]]struct{})
	}
	f.watchers[box] = struct{}{}
	box.Post(f.last)
}

func (f *feed) remove(box *listener.Mailbox[Event]) {
	f.mu.Lock()
	defer f.mu.Unlock()
	delete(f.watchers, box)
}

// tell records an event, unless the state is the same as before. A session that was lost
// has nothing to suspend.
func (f *feed) tell(ev Event) {
	f.mu.Lock()
	defer f.mu.Unlock()
	switch last := f.last.State; {
	case ev.State == Connected: // each is another session
	case ev.State == last, ev.State == Reconnected && last == Connected, ev.State == Suspended && last == Lost:
		return
	}
	f.last = ev
	for box := range f.watchers {
		box.Post(ev)
	}
}
