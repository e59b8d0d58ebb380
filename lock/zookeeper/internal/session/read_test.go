package session

import (
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// A deciding read waits for a write that was acknowledged over the same connection:
// until then it is not even sent.
func TestDecidingReadNeedsAConfirmedConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.s
	hold := r.proxy.HoldNext(testserver.All(testserver.Op(testserver.OpMulti)))
	r.proxy.Cut()
	await(t, "first write of the connection", hold.Held())
	asked := func(*zk.Conn, string) (Node, error) {
		t.Error("a deciding read was sent before a write was acknowledged over its connection")
		return Node{}, nil
	}
	if _, err := s.ask(r.path, asked, true); !errors.Is(err, errNotConfirmed) {
		t.Errorf("ask() = %v, want %v", err, errNotConfirmed)
	}
	hold.Release()
	if n, err := s.Decide(r.path, OfNode); err != nil || n.Exists {
		t.Errorf("Decide() = %+v, %v; want no znode", n, err)
	}
}

// A deciding read whose answer came over a later connection does not count.
func TestDecidingReadAnsweredOverALaterConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s, times := r.s, 0
	ask := func(c *zk.Conn, path string) (Node, error) {
		if times++; times == 1 {
			before, _ := s.confirmation()
			r.proxy.Cut()
			until(t, "another connection", func() bool {
				gen, err := s.confirmation()
				return err == nil && gen > before
			})
		}
		return OfNode(c, path)
	}
	if _, err := s.ask(r.path, ask, true); !errors.Is(err, errMoved) {
		t.Errorf("ask() = %v, want %v", err, errMoved)
	}
	times = 0
	if _, err := s.Decide(r.path, ask); err != nil || times != 2 {
		t.Errorf("Decide() = %v after %d reads, want it to read again", err, times)
	}
}

// A barrier counts over the connection that it was sent over.
func TestBarrierConfirmsTheConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	s := r.s
	for range 20 {
		r.proxy.Cut()
		if err := s.FinalBarrier(); err != nil {
			t.Fatalf("FinalBarrier() = %v", err)
		}
		if _, err := s.confirmation(); err != nil {
			t.Errorf("after a barrier: %v", err)
		}
	}
}

// The session makes a write of its own over every connection, at once and unasked: until
// that is acknowledged nothing decides. No heartbeat is due, since the clock stands still.
func TestConnectionLossIsFollowedByABarrier(t *testing.T) {
	t.Parallel()
	r := newStillRig(t)
	s := r.s
	for range 10 {
		before, err := s.confirmation()
		if err != nil {
			t.Fatalf("the connection is not confirmed: %v", err)
		}
		hold := r.proxy.HoldNextReply(testserver.Op(testserver.OpMulti))
		r.proxy.Cut()
		await(t, "a write over the next connection", hold.Held())
		if gen, err := s.confirmation(); err == nil {
			t.Errorf("connection %d is confirmed by no acknowledged write", gen)
		}
		hold.Release()
		until(t, "another confirmed connection", func() bool {
			gen, err := s.confirmation()
			return err == nil && gen > before
		})
	}
}
