package session

import (
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// clock computes the end of the trust in the leases of one session. All times are of the lease
// clock, so they go on while the machine is suspended. The type reads no clock itself. The lock
// of its session guards it.
//
// A session expires when the *leader* of the servers has heard nothing of it for the session
// time-out. A follower reports the active sessions in its answers to the leader's pings
// (Learner.ping in the server's source). The reports and the forwarded writes share one ordered
// stream. We do not assume that a forwarded write by itself tells the leader of the session. We
// assume only that before the write the follower has reported everything it had received one
// tick (two pings) earlier. If a write proves more, leases only end early.
//
//	expiry ≥ known + timeout
//	known  = the latest acknowledged write that was answered
//	         a tick before the last acknowledged one was sent
//
// With a write every heartbeat, known is at most a heartbeat and a tick before the last
// acknowledged write. This gives the rule of the documents:
//
//	trust until (last acknowledged write) + timeout − (heartbeat + tick + 5 %)
//
// After a pause in the writes the first rule is the stricter one, so both are applied.
// The 5 % are for clocks that run at different speeds.
type clock struct {
	timeout time.Duration // negotiated with the server
	tick    time.Duration // the servers' tickTime
	differ  bool          // two servers have granted different time-outs

	last   leaseclock.Instant // when the last acknowledged write was sent, zero before the first
	known  leaseclock.Instant // the latest sign of life known to the leader for sure
	recent []sign             // acknowledged writes after known, oldest first
}

// sign is an acknowledged write.
type sign struct{ sent, acked leaseclock.Instant }

// heartbeatOf is the longest pause between writes while leases are held.
func heartbeatOf(timeout time.Duration) time.Duration { return timeout / 10 }

// Margin is how much earlier trust ends than the session could.
func Margin(timeout, tick time.Duration) time.Duration {
	return heartbeatOf(timeout) + tick + driftOf(timeout)
}

func driftOf(timeout time.Duration) time.Duration { return timeout / 20 }

// CheckTimeout refuses a session if the margin leaves less trust than three heartbeats. One
// late answer would then cost every lease.
func CheckTimeout(timeout, tick time.Duration) error {
	trust, margin := timeout-Margin(timeout, tick), Margin(timeout, tick)
	if trust < 3*heartbeatOf(timeout) {
		return fmt.Errorf("zookeeper: session time-out %v is too short: the safety margin is %v (tick %v)", timeout, margin, tick)
	}
	return nil
}

// handshake records a connect accepted by the server. The leader itself confirms a connect, but
// a connect is no write, so it does not renew trust.
//
// The leader counts with the time-out of the server that last told it of the session, and after an election
// with that of the first one. If servers grant different ones, nobody knows when the session expires.
func (c *clock) handshake(sent leaseclock.Instant, timeout time.Duration) {
	c.differ = c.differ || c.contradicts(timeout)
	c.timeout = timeout
	if sent.After(c.known) {
		c.known = sent
	}
}

// contradicts reports whether an earlier connect was granted another time-out.
func (c *clock) contradicts(timeout time.Duration) bool {
	return !c.known.IsZero() && c.timeout != timeout
}

// acknowledge records when a write was sent and when it was answered. The order of the calls
// does not matter.
func (c *clock) acknowledge(sent, acked leaseclock.Instant) {
	if sent.After(c.last) {
		c.last = sent
	}
	// One of several signs close together is enough. The older one counts sooner.
	if n := len(c.recent); n == 0 || sent.Sub(c.recent[n-1].sent) >= c.tick/8 {
		c.recent = append(c.recent, sign{sent, acked})
	}
	reported := c.last.Add(-c.tick)
	n := 0
	for n < len(c.recent) && !c.recent[n].acked.After(reported) {
		if c.recent[n].sent.After(c.known) {
			c.known = c.recent[n].sent
		}
		n++
	}
	c.recent = append(c.recent[:0], c.recent[n:]...)
}

// deadline is the end of trust. It is the zero Instant before the first write, and if the servers' time-outs differ.
func (c *clock) deadline() leaseclock.Instant {
	if c.last.IsZero() || c.differ {
		return leaseclock.Instant{}
	}
	end := c.last.Add(c.timeout - Margin(c.timeout, c.tick))
	if strict := c.known.Add(c.timeout - driftOf(c.timeout)); strict.Before(end) {
		end = strict
	}
	return end
}

// heartbeat is the pause before the next write.
func (c *clock) heartbeat(held bool) time.Duration {
	if held {
		return heartbeatOf(c.timeout)
	}
	// An idle session writes often enough for two reasons. The first lease after a pause is
	// trusted for a useful time, and a dead ensemble is noticed before a caller asks.
	return min(c.timeout/4, (c.timeout-Margin(c.timeout, c.tick))/2)
}

// patience is how long a request may stay unanswered before the session moves to another
// server. It is short enough for the leases to survive the move.
func (c *clock) patience() time.Duration {
	return max(c.timeout/4, (c.timeout-Margin(c.timeout, c.tick))/2)
}

// glance is the longest pause between two looks at the clock while there is trust to lose.
// Timers stand still in a suspended machine. So a timer for the deadline itself would fire
// late, by as long as the machine slept.
func (c *clock) glance() time.Duration { return c.timeout / 20 }
