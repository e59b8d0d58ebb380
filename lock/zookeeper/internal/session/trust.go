package session

import (
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// Trust is the lease clock of a session and the holds that depend on it. status.mu guards it.
type Trust struct {
	status *Status

	clock  clock
	lapses int
	holds  map[*Hold]struct{}
}

// Hold stands for one lease on the session's trust.
type Hold struct {
	t       *Trust
	lost    func(error)
	overdue func()
}

// Hold registers a lease. It returns nil if the session cannot be trusted.
//
// When trust ends, the session calls lost, before it lets anything else happen. The session's
// lock is held then, so lost must not wait and must not call the session.
//
// Later it may call overdue, one time-out after trust ran out, or at the end of the session if
// that comes first. By then the holder has had time to stop its work, and the server may give
// the lock away. Holds that end with the session itself get no such call.
func (t *Trust) Hold(lost func(error), overdue func()) *Hold {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	if !t.expire() {
		return nil
	}
	h := &Hold{t: t, lost: lost, overdue: overdue}
	t.holds[h] = struct{}{}
	return h
}

// End ends the hold with its lease. Calling it again does no harm.
func (h *Hold) End() {
	h.t.status.mu.Lock()
	defer h.t.status.mu.Unlock()
	delete(h.t.holds, h)
}

// Trusted reports whether the leases of the session can be trusted. It reads the lease
// clock, and if trust has run out it tells the holders first.
func (t *Trust) Trusted() bool {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	return t.expire()
}

// Left is how long the leases can be trusted from now on. It is negative when trust has
// run out, and the holders have been told then.
func (t *Trust) Left() time.Duration {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	t.expire()
	return t.left()
}

// Stale reports whether the last acknowledged write is older than a quarter of the
// session.
func (t *Trust) Stale() bool {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	return t.status.now().Sub(t.clock.last) > t.clock.timeout/4
}

// Timeout is the session time-out granted by the servers.
func (t *Trust) Timeout() time.Duration {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	return t.clock.timeout
}

// Held is the number of leases on the session's trust.
func (t *Trust) Held() int {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	return len(t.holds)
}

// left is how long trust lasts by the clock, whether or not the holders know. Needs mu.
func (t *Trust) left() time.Duration { return t.clock.deadline().Sub(t.status.now()) }

// acknowledge records an acknowledged write. Trust runs from the sending of the write. gen is
// the number of the connection at that time. acknowledge reports whether the write confirmed
// the present connection.
func (t *Trust) acknowledge(gen uint64, sent, acked leaseclock.Instant) (confirmed bool) {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	if t.status.why != nil {
		return false
	}
	first := t.clock.last.IsZero()
	t.clock.acknowledge(sent, acked)
	if first || t.status.lapsed && t.left() > 0 {
		t.status.lapsed = false // otherwise lookOut says so at once
		t.status.broadcast()
	}
	if t.status.connected && !t.status.confirmed && gen == t.status.gen {
		t.status.confirmed = true
		t.status.broadcast()
		return true
	}
	return false
}

// lookOut looks at the clock at the end of trust, or before, until the session is over. It only
// wakes the goroutines that wait for a loss. Callers get their answers from the clock itself.
func (t *Trust) lookOut() {
	for {
		t.status.mu.Lock()
		next, changed := t.clock.glance(), t.status.changed
		if t.expire() {
			next = min(next, t.left())
		}
		t.status.mu.Unlock()
		select {
		case <-time.After(next):
		case <-changed:
		case <-t.status.over:
			return
		}
	}
}

// expire ends all leases if trust has run out. It reports whether the session is trusted. Needs
// mu.
func (t *Trust) expire() bool {
	switch {
	case t.status.why != nil || t.status.lapsed || t.clock.last.IsZero():
		return false
	case t.left() > 0:
		return true
	}
	t.status.lapsed = true
	t.lapses++
	lost, nth := t.loseAll(errUntrusted), t.lapses
	t.status.broadcast()
	t.status.wg.Go(func() { t.afterLapse(nth, lost) })
	return false
}

// errUntrusted is why leases end when the session cannot be trusted any more.
var errUntrusted = fmt.Errorf("%w: no write was acknowledged for too long", driver.ErrLeaseLost)

// loseAll ends all leases and returns them. Needs mu.
func (t *Trust) loseAll(err error) []*Hold {
	lost := make([]*Hold, 0, len(t.holds))
	for h := range t.holds {
		h.lost(err)
		lost = append(lost, h)
	}
	clear(t.holds)
	return lost
}

// afterLapse finishes the work after a lapse of trust.
//
// If the session lives on, the locks of the lost leases have to go, but not at once. The holder
// may need a moment to stop, and until it calls Release its znode keeps other clients out. If
// the session really had been over, the znode would have gone after one session time-out. So
// after that time the lock goes in any case.
//
// If the session is still not trusted by then, afterLapse gives it up. A server may hear us
// although we do not hear it. It would keep the session and its locks for ever, since every
// attempt at a connection renews the session.
func (t *Trust) afterLapse(nth int, lost []*Hold) {
	t.status.log.Warn("zookeeper: session can no longer be trusted", "session", hexID(t.status.ID()), "leases", len(lost))
	select {
	case <-time.After(t.Timeout()):
	case <-t.status.over:
	}
	for _, h := range lost {
		h.overdue()
	}
	t.status.mu.Lock()
	hopeless := t.status.lapsed && t.lapses == nth
	t.status.mu.Unlock()
	if hopeless {
		t.GiveUp()
	}
}

// GiveUp ends the session. The keeper starts another one.
func (t *Trust) GiveUp() { t.die(ErrGivenUp) }

// die ends the session. All its leases are lost before die returns. shutdown then cleans up at
// the server.
func (t *Trust) die(why error) {
	t.status.mu.Lock()
	defer t.status.mu.Unlock()
	if t.status.why != nil {
		return
	}
	t.status.why = why
	t.status.connected, t.status.confirmed = false, false
	t.loseAll(fmt.Errorf("%w: %w", driver.ErrLeaseLost, why))
	close(t.status.over)
	t.status.broadcast()
}
