package session

import (
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// settling is how long requests wait for a library that has connected again to repeat
// its watches first. A library without watches gives no sign of that.
const settling = 20 * time.Millisecond

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
		lost, id := l.linked, l.id
		if lost {
			l.linked, l.connected, l.confirmed = false, false, false
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
	gen := l.onLinked(id, timeout, sent)
	if gen <= 1 {
		return
	}
	l.log.Info("zookeeper: connected again", "session", hexID(id))
	// The library now repeats its watches, and requests follow after those. The
	// transport tells when they have been sent. Without watches it tells nothing.
	time.AfterFunc(settling, func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		l.connect(gen)
	})
}

func (l *link) onLinked(id int64, timeout time.Duration, sent leaseclock.Instant) (gen uint64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.why != nil {
		return 0
	}
	l.id = id // always the same; the transport makes sure of it
	l.gen++
	l.linked, l.connected, l.confirmed = true, false, false
	l.clock.handshake(sent, timeout)
	l.arm()
	if l.gen == 1 {
		l.connect(l.gen) // there are no watches yet
	}
	return l.gen
}

// onRewatched is called by the transport when the library has repeated its watches.
func (l *link) onRewatched() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.connect(l.gen)
}

// connect lets requests through to a connection. Needs mu.
func (l *link) connect(gen uint64) {
	if l.why == nil && l.linked && !l.connected && gen == l.gen {
		l.connected = true
		l.broadcast()
		l.wake()
	}
}
