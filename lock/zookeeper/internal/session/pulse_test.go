package session

import (
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// A write is due at once over each new connection, and then a heartbeat after the last
// acknowledged write. A session with leases has the shorter one.
func TestHeartbeatIsDueInTime(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		longest := heartbeatOf(s.cfg.Timeout)
		due := func(when string, want time.Duration) {
			t.Helper()
			if got, _ := s.Pulse.due(); got != want {
				t.Errorf("%s: due in %v, want %v", when, got, want)
			}
		}
		due("without a connection", longest)
		reconnect(s)
		due("over a new connection", 0)
		confirm(s)
		idle := s.cfg.Timeout / 4 // docs/scaling.md counts with it
		due("after a write", longest)
		time.Sleep(idle - longest/2)
		due("an idle session", longest/2)
		time.Sleep(longest / 2)
		due("an idle session, after its heartbeat", 0)
		confirm(s)
		h := s.Trust.Hold(func(error) {}, func() {})
		time.Sleep(longest / 2)
		due("with a lease", longest-longest/2)
		time.Sleep(longest)
		due("with a lease, too late", longest/2-longest)
		h.End()
		reconnect(s)
		due("over another connection", 0)
		_, changed := s.Pulse.due()
		confirm(s)
		await(t, "the change", changed)
	})
}

// The session writes no more than is due, and goes on after a heartbeat without an answer.
func TestPulseWritesWhatIsDue(t *testing.T) {
	t.Parallel()
	r := newStillRig(t)
	s := r.s
	writes := func() int32 { // each has set the data of the member
		n, err := s.Reads.Decide(s.Member(), OfNode)
		if err != nil || !n.Exists {
			t.Fatalf("Decide(member) = %+v, %v", n, err)
		}
		return n.Version
	}
	before := writes()
	for range 20 {
		if n := writes(); n != before {
			t.Fatalf("%d writes while none is due", n-before)
		}
	}
	first, err := s.requests.confirmation()
	if err != nil {
		t.Fatalf("confirmation() = %v", err)
	}
	hold := r.proxy.HoldNextReply(testserver.Op(testserver.OpMulti))
	r.clock.Advance(s.Trust.Timeout() / 4)
	await(t, "a heartbeat", hold.Held())
	r.proxy.Cut()
	hold.Release()
	until(t, "another confirmed connection", func() bool {
		gen, err := s.requests.confirmation()
		return err == nil && gen > first
	})
}
