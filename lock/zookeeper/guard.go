package zookeeper

import (
	"sync"
	"time"
)

// guard watches over one request. When it stays unanswered for too long the
// connection is dropped, so that the session moves to another server while its
// leases are still trusted. The library would notice after two thirds of the
// session, which may be too late; a follower that was cut off from its leader
// even goes on answering pings as long as no write of the session waits (a
// pending write holds up all that the session sent after it). It also ends
// requests that would stay unanswered for ever.
type guard struct {
	s *session

	mu      sync.Mutex
	gen     uint64
	timer   *time.Timer
	stopped bool
}

func (s *session) guard() *guard {
	s.mu.Lock()
	gen, patience := s.gen, s.clock.patience()
	s.mu.Unlock()
	g := &guard{s: s, gen: gen}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.timer = time.AfterFunc(patience, g.fire)
	return g
}

func (g *guard) fire() {
	g.s.mu.Lock()
	gen, connected, over, patience := g.s.gen, g.s.connected, g.s.why != nil, g.s.clock.patience()
	g.s.mu.Unlock()

	if g.expired(gen, connected, over, patience) {
		g.s.tr.drop()
		g.s.log.Warn("zookeeper: a request was not answered, trying another server", "after", patience)
	}
}

func (g *guard) expired(gen uint64, connected, over bool, patience time.Duration) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.stopped || over {
		return false
	}
	if connected && gen == g.gen {
		return true
	}
	// It waited for a connection, so its time starts with that.
	g.gen = gen
	g.timer.Reset(patience)
	return false
}

func (g *guard) stop() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.stopped = true
	g.timer.Stop()
}
