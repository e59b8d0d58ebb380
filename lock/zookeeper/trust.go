package zookeeper

import (
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// acknowledge takes note of an answered write: trust runs from when it was
// sent.
func (s *session) acknowledge(gen uint64, sent, acked leaseclock.Instant) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.why != nil {
		return
	}
	first := s.clock.last.IsZero()
	s.clock.acknowledge(sent, acked)
	trusted := s.trusted()
	up := s.connected && (s.confirmed || gen == s.gen)
	if first || (s.lapsed && trusted) {
		s.lapsed = false // or the timer will say so at once
		s.arm()
		s.broadcast()
	}
	if up && !s.confirmed {
		s.confirmed = true
		s.fireAll() // what happened meanwhile was not seen
		s.broadcast()
	}
}

// trusted says by the clock whether the session's leases can be believed in. It may be
// false before the timer has found out. Needs mu.
func (s *session) trusted() bool { return s.cfg.now().Before(s.clock.deadline()) }

// left is for how long. Needs mu.
func (s *session) left() time.Duration { return s.clock.deadline().Sub(s.cfg.now()) }

// arm sets the timer to the next look at the clock: at the end of trust, or before.
// The timer only wakes those who wait for the end. Those who ask are told by the
// clock. Needs mu.
func (s *session) arm() {
	if s.why != nil || s.clock.last.IsZero() {
		return
	}
	left := min(s.left(), s.clock.glance())
	if s.timer == nil {
		s.timer = time.AfterFunc(left, s.lapse)
		return
	}
	s.timer.Reset(left)
}

// lapse runs when trust may have run out: the deadline moves on with every
// write, the timer only when it fires.
func (s *session) lapse() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.expire() {
		s.arm()
	}
}

// expire ends all leases where trust has run out. It returns whether there is trust.
// Needs mu.
func (s *session) expire() bool {
	switch {
	case s.why != nil || s.lapsed:
		return false
	case s.trusted():
		return true
	}
	s.lapsed = true
	s.lapses++
	lost, nth := s.loseAll(errUntrusted), s.lapses
	s.broadcast()
	s.wg.Go(func() { s.afterLapse(nth, lost) })
	return false
}

// errUntrusted is why the leases of a session end that cannot be trusted any more.
var errUntrusted = fmt.Errorf("%w: no write was acknowledged for too long", idem.ErrLeaseLost)

// afterLapse sees to what is left when the trust in a session has run out.
//
// If the session lives on, the locks of the leases that were lost have to go.
// Not at once: a holder that was told to stop may need a moment to do so, and
// until now its znode kept others out. When it has stopped it calls Release;
// after one session time-out, which is when the znode would have gone had the
// session really been over, it goes in any case.
//
// If it is still not to be trusted by then, it is given up. A server that hears
// us, though we do not hear it, would otherwise keep it and its locks for ever,
// since every attempt at a connection renews it.
func (s *session) afterLapse(nth int, lost []*Lease) {
	s.log.Warn("zookeeper: session can no longer be trusted", "session", hexID(s.sessionID()), "leases", len(lost))
	select {
	case <-time.After(s.timeout()):
	case <-s.over:
	}
	s.mu.Lock()
	for _, l := range lost {
		s.beginRelease(l)
	}
	hopeless := s.lapsed && s.lapses == nth
	s.mu.Unlock()
	if hopeless {
		s.die(errGivenUp)
	}
}
