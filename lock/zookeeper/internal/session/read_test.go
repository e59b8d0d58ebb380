package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
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
	if _, err := s.Reads.ask(r.path, asked, true); !errors.Is(err, errNotConfirmed) {
		t.Errorf("ask() = %v, want %v", err, errNotConfirmed)
	}
	hold.Release()
	if n, err := s.Reads.Decide(r.path, OfNode); err != nil || n.Exists {
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
			before, _ := s.requests.confirmation()
			r.proxy.Cut()
			until(t, "another connection", func() bool {
				gen, err := s.requests.confirmation()
				return err == nil && gen > before
			})
		}
		return OfNode(c, path)
	}
	if _, err := s.Reads.ask(r.path, ask, true); !errors.Is(err, errMoved) {
		t.Errorf("ask() = %v, want %v", err, errMoved)
	}
	times = 0
	if _, err := s.Reads.Decide(r.path, ask); err != nil || times != 2 {
		t.Errorf("Decide() = %v after %d reads, want it to read again", err, times)
	}
}

// The session makes a write of its own over every connection, at once and unasked: until
// that is acknowledged nothing decides. No heartbeat is due, since the clock stands still.
func TestConnectionLossIsFollowedByABarrier(t *testing.T) {
	t.Parallel()
	r := newStillRig(t)
	s := r.s
	for range 10 {
		before, err := s.requests.confirmation()
		if err != nil {
			t.Fatalf("the connection is not confirmed: %v", err)
		}
		hold := r.proxy.HoldNextReply(testserver.Op(testserver.OpMulti))
		r.proxy.Cut()
		await(t, "a write over the next connection", hold.Held())
		if gen, err := s.requests.confirmation(); err == nil {
			t.Errorf("connection %d is confirmed by no acknowledged write", gen)
		}
		hold.Release()
		until(t, "another confirmed connection", func() bool {
			gen, err := s.requests.confirmation()
			return err == nil && gen > before
		})
	}
}

// A barrier counts only if its write was acknowledged, over the connection that was there when it
// began. It ends with the session.
func TestBarrierNeedsAnAcknowledgedWriteOfItsConnection(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		reconnect(s)
		confirm(s)
		writes := 0
		s.Writes.send = func(...any) Result {
			switch writes++; writes {
			case 1: // the servers gave half an answer, over the same connection
				return Result{Outcome: Unknown}
			case 2: // another connection has come meanwhile, and is confirmed
				reconnect(s)
				confirm(s)
			case 4:
				s.Trust.die(ErrExpired)
				return Result{Outcome: Ended, Err: ErrExpired}
			}
			return Result{Outcome: Applied}
		}
		if err := s.Pulse.Barrier(context.Background()); err != nil || writes != 3 {
			t.Errorf("Barrier() = %v after %d writes, want nil after 3", err, writes)
		}
		if err := s.Pulse.FinalBarrier(); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, ErrExpired) {
			t.Errorf("FinalBarrier() = %v at the end of the session, want %v because of %v", err, driver.ErrUnavailable, ErrExpired)
		}
	})
}

// A read that failed is no read of a missing znode. A hint counts although the connection is gone,
// and a deciding read does not.
func TestReadTellsWhatTheServersSaid(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		there := Node{Exists: true, Czxid: 7}
		for name, tt := range map[string]struct {
			deciding bool
			during   func() // the read
			answer   error
			want     error
		}{
			"hint":                             {false, func() {}, nil, nil},
			"decided":                          {true, func() {}, nil, nil},
			"a hint over a lost connection":    {false, func() { s.requests.onState(zk.StateDisconnected) }, nil, nil},
			"decided over a lost connection":   {true, func() { s.requests.onState(zk.StateDisconnected) }, nil, errMoved},
			"decided over an unconfirmed one":  {true, func() { reconnect(s) }, nil, errMoved},
			"decided over another one":         {true, func() { reconnect(s); confirm(s) }, nil, errMoved},
			"no hint":                          {false, func() {}, zk.ErrConnectionClosed, zk.ErrConnectionClosed},
			"not decided":                      {true, func() {}, zk.ErrConnectionClosed, zk.ErrConnectionClosed},
			"refused, and the connection lost": {true, func() { reconnect(s) }, ErrNotPermitted, ErrNotPermitted},
		} {
			for range cap(s.Reads.slots) + 1 { // each gives its slot back
				reconnect(s)
				confirm(s)
				got, err := s.Reads.ask("/a", func(*zk.Conn, string) (Node, error) {
					tt.during()
					if tt.answer != nil {
						return Node{}, tt.answer
					}
					return there, nil
				}, tt.deciding)
				if !errors.Is(err, tt.want) || got.Exists != (tt.want == nil) {
					t.Fatalf("%s: ask() = %+v, %v, want %v", name, got, err, tt.want)
				}
			}
		}
		s.requests.onState(zk.StateDisconnected)
		if _, err := s.Reads.ask("/a", nil, false); !errors.Is(err, errNotConnected) {
			t.Errorf("ask() = %v without a connection, want %v", err, errNotConnected)
		}
	})
}

// A call whose context has ended is not begun.
func TestCallOfAnEndedContextIsNotBegun(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		s := alone(t)
		_, err := Within(ctx, s.Status, func() (struct{}, error) {
			t.Error("the call was begun")
			return struct{}{}, nil
		})
		if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
			t.Errorf("Within() = %v, want %v because of %v", err, driver.ErrUnavailable, context.Canceled)
		}
	})
}
