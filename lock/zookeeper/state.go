package zookeeper

import (
	"fmt"
	"sync"
	"time"
)

// ConnectionState is how a [Client] stands with the ensemble.
//
//	Connected, Reconnected ──▶ Lost, Suspended
//	Lost                   ──▶ Connected (a new session), Reconnected (the same)
//	Suspended              ──▶ Lost, Reconnected
//
// The states are those of Apache Curator's ConnectionState, for sessions whose
// trust is counted by acknowledged writes (see the package comment).
type ConnectionState uint8

const (
	// Connected says that a new session serves callers.
	Connected ConnectionState = iota + 1
	// Suspended says that the connection is gone, or has not proved itself yet.
	// The session may live on: leases are still good, but nothing new can be
	// had.
	Suspended
	// Reconnected says that the same session serves callers again. After
	// Suspended, all leases are good; after Lost, none of those from before.
	Reconnected
	// Lost says that the session is over, or that nothing was acknowledged for
	// so long that it may be: all leases are lost.
	Lost
)

// String returns "connected", "suspended", "reconnected" or "lost".
func (s ConnectionState) String() string {
	switch s {
	case Connected:
		return "connected"
	case Suspended:
		return "suspended"
	case Reconnected:
		return "reconnected"
	case Lost:
		return "lost"
	}
	return fmt.Sprintf("ConnectionState(%d)", uint8(s))
}

// ConnectionEvent is a change of state.
type ConnectionEvent struct {
	State   ConnectionState
	Session string    // the session's ID, as in the servers' logs
	At      time.Time // when this process knew
	Err     error     // why, of Suspended and Lost
}

// Watch has f called with the present state, and then with every change, in
// their order, one at a time, on a goroutine that is not the session's: f may be
// slow, events wait for it without limit, and if it panics that is logged and it
// is called for the next one all the same. It may use the client, but not close
// it. The last event is that of [Client.Close], which waits for f.
//
// An event is news, not a guard: what must stop when a lock is lost watches
// [Lease.Done].
//
// stop ends it, without waiting for a call that is under way.
func (c *Client) Watch(f func(ConnectionEvent)) (stop func()) {
	if f == nil {
		return func() {}
	}
	box := newMailbox(c.listeners, f)
	c.connection.add(box)
	return func() {
		c.connection.remove(box)
		box.stop()
	}
}

// connection is what has been told of a client's sessions.
type connection struct {
	mu       sync.Mutex // taken with a session's lock held
	last     ConnectionEvent
	watchers map[*mailbox[ConnectionEvent]]struct{}
}

func (n *connection) add(box *mailbox[ConnectionEvent]) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.watchers == nil {
		n.watchers = make(map[*mailbox[ConnectionEvent]]struct{})
	}
	n.watchers[box] = struct{}{}
	box.post(n.last)
}

func (n *connection) remove(box *mailbox[ConnectionEvent]) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.watchers, box)
}

// announce begins to tell of a session, once callers are served by it.
func (s *session) announce() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.adopted = true
	s.client.connection.tell(ConnectionEvent{State: Connected, Session: hexID(s.id), At: time.Now()})
	s.tell() // what has become of it since it was up
}

// tell tells the application how the session stands, if that is news. It is
// called at every change of state, so that none is missed, and with the
// session's lock held, so that they are in order. Needs mu.
func (s *session) tell() {
	if !s.adopted {
		return
	}
	err := s.trouble(true)
	ev := ConnectionEvent{State: Reconnected, Session: hexID(s.id), At: time.Now(), Err: err}
	switch {
	case err == nil:
	case s.why != nil || s.lapsed:
		ev.State = Lost
	default:
		ev.State = Suspended
	}
	s.client.connection.tell(ev)
}

// tell takes note of a state, unless it is the one that there is.
func (n *connection) tell(ev ConnectionEvent) {
	n.mu.Lock()
	defer n.mu.Unlock()
	switch last := n.last.State; ev.State {
	case Reconnected:
		if last == Connected || last == Reconnected {
			return
		}
	case Suspended: // a session that was lost has nothing to suspend
		if last == Suspended || last == Lost {
			return
		}
	case Lost:
		if last == Lost {
			return
		}
	case Connected:
	}
	n.last = ev
	for box := range n.watchers {
		box.post(ev)
	}
}
