package session

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

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
