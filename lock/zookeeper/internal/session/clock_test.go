package session

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// model is what the clock has to be right about: a follower that tells the
// leader at certain moments which sessions were active since it last did.
type model struct {
	tick, timeout time.Duration
	touched       leaseclock.Instant // latest activity that the follower has seen
	reported      leaseclock.Instant // when the leader last heard of the session
}

// A clock must never trust beyond what the leader grants, whatever pattern the
// writes have and whenever the follower is cut off, for as long as it reports
// every tick (servers do so twice as often).
func TestClockNeverOutlivesTheSession(t *testing.T) {
	t.Parallel()
	for seed := range uint64(2000) {
		rng := rand.New(rand.NewPCG(seed, 1))
		timeout := time.Duration(4+rng.IntN(56)) * time.Second
		tick := time.Duration(200+rng.IntN(1800)) * time.Millisecond
		if CheckTimeout(timeout, tick) != nil {
			continue
		}
		t0 := leaseclock.Now()
		m := model{tick: tick, timeout: timeout, touched: t0, reported: t0}
		c := clock{tick: tick}
		c.handshake(t0, timeout)
		now, nextReport := t0, t0.Add(time.Duration(rng.Int64N(int64(tick))))
		for range 200 {
			gap := time.Duration(rng.Int64N(int64(timeout / 3)))
			if rng.IntN(3) > 0 {
				gap = time.Duration(rng.Int64N(int64(timeout/10) + 1))
			}
			sent := now.Add(gap)
			arrives := sent.Add(time.Duration(rng.Int64N(int64(tick))))
			for !nextReport.After(arrives) { // each report tells who was active before it
				if m.touched.After(m.reported) {
					m.reported = m.touched // at the earliest: it was seen before
				}
				nextReport = nextReport.Add(tick)
			}
			m.touched = arrives
			acked := arrives.Add(time.Duration(rng.Int64N(int64(100 * time.Millisecond))))
			c.acknowledge(sent, acked)
			now = acked
			// Were the follower cut off right now, the session would end here:
			expiry := m.reported.Add(timeout)
			if end := c.deadline(); end.After(expiry) {
				t.Fatalf("seed %d: trusted until %v, but the session could end at %v (timeout %v, tick %v)",
					seed, end.Sub(t0), expiry.Sub(t0), timeout, tick)
			}
		}
	}
}

func TestClockSteady(t *testing.T) {
	t.Parallel()
	const timeout, tick = 10 * time.Second, 2 * time.Second
	t0 := leaseclock.Now()
	c := clock{tick: tick}
	c.handshake(t0, timeout)
	if !c.deadline().IsZero() {
		t.Error("trusted before the first write")
	}
	var sent leaseclock.Instant
	for i := range 60 {
		sent = t0.Add(time.Duration(i) * c.heartbeat(true))
		c.acknowledge(sent, sent.Add(time.Millisecond))
		// Two seconds after the start, the rule of the documents applies.
		want := sent.Add(timeout - time.Second - tick - timeout/20)
		if got := c.deadline(); want.Sub(got) > 20*time.Millisecond+tick/8 || got.After(want) {
			t.Fatalf("after write %d: trusted for %v, want %v", i, got.Sub(sent), want.Sub(sent))
		}
	}
	if n := len(c.recent); n > 16 {
		t.Errorf("%d signs are kept", n)
	}
	before := c.deadline()
	c.acknowledge(t0, t0.Add(time.Second)) // an old answer
	if c.deadline() != before {
		t.Error("an answer to an older write has changed the deadline")
	}
	c.handshake(sent.Add(5*time.Second), timeout)
	if c.deadline() != before {
		t.Error("a reconnect has renewed trust, only writes may")
	}
}

// With many writes the leader's knowledge is fresh, and the margin alone ends trust early.
func TestClockKeepsItsMarginUnderManyWrites(t *testing.T) {
	t.Parallel()
	const timeout, tick = 10 * time.Second, 2 * time.Second
	t0 := leaseclock.Now()
	c := clock{tick: tick}
	c.handshake(t0, timeout)
	for i := range 200 {
		sent := t0.Add(time.Duration(i) * 50 * time.Millisecond)
		c.acknowledge(sent, sent.Add(time.Millisecond))
		if got, want := c.deadline().Sub(sent), timeout-Margin(timeout, tick); got > want {
			t.Fatalf("after write %d: trusted for %v, want %v at most", i, got, want)
		}
	}
}

func TestClockAfterAPause(t *testing.T) {
	t.Parallel()
	const timeout, tick = 40 * time.Second, 2 * time.Second
	t0 := leaseclock.Now()
	c := clock{tick: tick}
	c.handshake(t0, timeout)
	c.acknowledge(t0, t0)
	sent := t0.Add(15 * time.Second)
	c.acknowledge(sent, sent)
	if got, most := c.deadline(), t0.Add(timeout-timeout/20); got.After(most) {
		t.Errorf("trusted until %v, but the leader may only know of the write at 0: %v at most", got.Sub(t0), most.Sub(t0))
	}
}

// A suspended machine stops timers. So the holder of a lease looks at the clock often enough to hear
// of the end of its trust within a twentieth of the session, as package zookeeper promises.
func TestClockIsLookedAtOften(t *testing.T) {
	t.Parallel()
	c := clock{timeout: 10 * time.Second, tick: time.Second}
	if got := c.glance(); got <= 0 || got > c.timeout/20 {
		t.Errorf("glance() = %v, want at most %v", got, c.timeout/20)
	}
}
