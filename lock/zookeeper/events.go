package zookeeper

import (
	"strings"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// onEvent is the library's callback. It runs on the library's own goroutines,
// so it must not wait and must not call ZooKeeper.
func (s *session) onEvent(ev zk.Event) {
	switch {
	case ev.Type == zk.EventSession && ev.Server == "":
		// Sent by a server as a watch event; the library's own events, which
		// name their server, say all there is to know.
	case ev.Type == zk.EventSession:
		s.onState(ev.State)
	case ev.Type != zk.EventNotWatching:
		s.mu.Lock()
		s.fire(ev.Path)
		s.fire(ev.Path + childrenOf)
		s.fire(ev.Path + nodeOf)
		s.fire(strings.TrimSuffix(ev.Path, lockChild))
		s.mu.Unlock()
	}
}

func (s *session) onState(state zk.State) {
	switch state {
	case zk.StateHasSession:
		s.onConnected()
	case zk.StateExpired:
		s.die(errExpired)
	case zk.StateDisconnected, zk.StateConnecting:
		s.mu.Lock()
		lost, id := s.linked, s.id
		if lost {
			s.linked, s.connected, s.confirmed = false, false, false
			s.broadcast()
		}
		s.mu.Unlock()
		if lost {
			s.log.Warn("zookeeper: connection lost", "session", hexID(id), "error", s.tr.failure())
		}
	}
}

func (s *session) onConnected() {
	id, timeout, sent := s.tr.accepted()
	gen := s.onLinked(id, timeout, sent)
	if gen <= 1 {
		return
	}
	s.log.Info("zookeeper: connected again", "session", hexID(id))
	// The library now repeats its watches, and requests follow behind those. The
	// transport tells when they have been sent; if there are none, nothing tells.
	time.AfterFunc(settling, func() {
		s.mu.Lock()
		defer s.mu.Unlock()
		s.connect(gen)
	})
}

func (s *session) onLinked(id int64, timeout time.Duration, sent leaseclock.Instant) (gen uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return 0
	}
	s.id = id // always the same; the transport sees to it
	s.gen++
	s.linked, s.connected, s.confirmed = true, false, false
	s.clock.handshake(sent, timeout)
	s.arm()
	if s.gen == 1 {
		s.connect(s.gen) // there are no watches yet
	}
	return s.gen
}

// onWatchesSent is called by the transport when the library has repeated its
// watches after a reconnect.
func (s *session) onWatchesSent() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.connect(s.gen)
}

// connect lets requests through to a connection. Needs mu.
func (s *session) connect(gen uint64) {
	if s.why == nil && s.linked && !s.connected && gen == s.gen {
		s.connected = true
		s.broadcast()
		s.wakePulse()
	}
}
