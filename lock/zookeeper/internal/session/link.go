package session

import (
	"github.com/go-zookeeper/zk"
)

// link follows the connections of a session by the events of the library. The events
// come on the library's own goroutines, so nothing here may wait or call ZooKeeper.
type link struct {
	*trust

	fire func(zk.Event) // wakes the watches of an event
}

// onEvent is the library's callback.
func (l *link) onEvent(ev zk.Event) {
	switch {
	case ev.Type == zk.EventSession && ev.Server == "":
		// A server sent this as a watch event. The library's own events name their
		// server and say everything.
	case ev.Type == zk.EventSession:
		l.onState(ev.State)
	case ev.Type != zk.EventNotWatching:
		l.fire(ev)
	}
}

func (l *link) onState(state zk.State) {
	switch state {
	case zk.StateHasSession:
		l.onConnected()
	case zk.StateExpired:
		l.die(ErrExpired)
	case zk.StateDisconnected, zk.StateConnecting:
		l.mu.Lock()
		lost, id := l.connected, l.id
		if lost {
			l.connected, l.confirmed = false, false
			l.broadcast()
		}
		l.mu.Unlock()
		if lost {
			l.log.Warn("zookeeper: connection lost", "session", hexID(id), "error", l.tr.Failure())
		}
	}
}

func (l *link) onConnected() {
	id, timeout, sent := l.tr.Accepted()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return
	}
	l.id = id // always the same; the transport makes sure of it
	l.gen++
	l.connected, l.confirmed = true, false
	l.clock.handshake(sent, timeout)
	l.arm()
	l.broadcast()
}
