package session

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// Once it is noted that trust has run out, only an acknowledged write brings it back. A connect that was
// accepted moves the deadline as well, and no timer would watch it.
func TestNothingIsHeldAfterTrustRanOut(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	r.proxy.Freeze(testserver.Both)
	defer r.proxy.Restore()
	st := r.s.Status
	st.mu.Lock()
	st.lapsed = true
	st.mu.Unlock()
	held := r.s.Trust.Hold(func(error) {}, func() {})
	st.mu.Lock()
	st.lapsed = false
	st.mu.Unlock()
	if held != nil {
		t.Error("Hold() after trust ran out, and no timer ends it")
	}
}

// A holder is told before trust ends, and again when the lock has to go.
func TestHoldIsToldOfTheEndOfTrust(t *testing.T) {
	t.Parallel()
	r := newStillRig(t)
	lost, overdue := make(chan error, 2), make(chan struct{})
	ended := r.s.Trust.Hold(func(err error) { t.Errorf("told of %v after End()", err) }, func() {})
	if r.s.Trust.Hold(func(err error) { lost <- err }, func() { close(overdue) }) == nil {
		t.Fatal("Hold() = nil, want a hold")
	}
	ended.End()
	if n := r.s.Trust.Held(); n != 1 {
		t.Errorf("Held() = %d, want 1", n)
	}
	r.proxy.Freeze(testserver.Both)
	r.clock.Advance(r.s.Trust.Timeout())
	if r.s.Trust.Trusted() {
		t.Error("Trusted() = true a session after the last write")
	}
	if err := <-lost; !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("told of %v, want %v", err, driver.ErrLeaseLost)
	}
	if r.s.Trust.Hold(func(error) {}, func() {}) != nil {
		t.Error("Hold() without trust, want nil")
	}
	r.proxy.Restore()
	await(t, "the lock has to go", overdue)
	select {
	case err := <-lost:
		t.Errorf("told of %v a second time", err)
	default:
	}
}

// A session that is over grants no lease, although its last write is young.
func TestNoLeaseAfterTheEndOfTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t)
	if h := r.s.Trust.Hold(func(error) {}, func() {}); h == nil {
		t.Fatal("Hold() = nil before the end, want a hold")
	}
	r.s.Trust.GiveUp()
	if h := r.s.Trust.Hold(func(error) {}, func() {}); h != nil || r.s.Trust.Trusted() || r.s.Trust.Held() != 0 {
		t.Errorf("Hold() after the end = %v, Trusted() = %v, %d holds, want none", h, r.s.Trust.Trusted(), r.s.Trust.Held())
	}
}

// The answer to a write over an earlier connection may be read late. It does not confirm the
// present connection, whose server may be stale.
func TestWriteOfAnEarlierConnectionConfirmsNothing(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		first := reconnect(s)
		second := reconnect(s)
		for _, tt := range []struct {
			gen  uint64
			want bool
		}{{first, false}, {second, true}, {second, false}} {
			if got := s.Trust.acknowledge(tt.gen, s.Status.now(), s.Status.now()); got != tt.want {
				t.Errorf("a write over connection %d of %d has confirmed it: %v, want %v", tt.gen, second, got, tt.want)
			}
			if _, err := s.requests.confirmation(); (err == nil) != (tt.gen == second) {
				t.Errorf("confirmation() = %v after a write over connection %d of %d", err, tt.gen, second)
			}
		}
		s.requests.onState(zk.StateDisconnected)
		if s.Trust.acknowledge(second, s.Status.now(), s.Status.now()) {
			t.Error("a write has confirmed a connection that is gone")
		}
	})
}

// Trust that ran out comes back with a write that was sent lately, and not with the late answer to
// an old one. Those that wait are woken.
func TestTrustComesBackWithAFreshWrite(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		gen := reconnect(s)
		if s.Trust.Hold(func(error) {}, func() {}) != nil || s.Trust.Trusted() {
			t.Error("Hold() before the first write, want nil")
		}
		if err := s.Status.Usable(); !errors.Is(err, errNotConfirmed) {
			t.Errorf("Usable() = %v before the first write, want %v", err, errNotConfirmed)
		}
		confirm(s)
		sent := s.Status.now()
		time.Sleep(trustOf(s) - time.Millisecond)
		if !s.Trust.Trusted() {
			t.Error("Trusted() = false just before the deadline")
		}
		time.Sleep(time.Millisecond)
		if s.Trust.Trusted() {
			t.Error("Trusted() = true at the deadline")
		}
		up := make(chan error, 1)
		s.Status.Go(func() { up <- s.Status.Settled() })
		synctest.Wait()
		s.Trust.acknowledge(gen, sent, s.Status.now())
		if err := s.Status.Usable(); !errors.Is(err, errNoQuorum) {
			t.Errorf("Usable() = %v after the late answer to an old write, want %v", err, errNoQuorum)
		}
		confirm(s)
		if err := s.Status.Usable(); err != nil || !s.Trust.Trusted() {
			t.Errorf("Usable() = %v, Trusted() = %v after a fresh write", err, s.Trust.Trusted())
		}
		synctest.Wait()
		select {
		case err := <-up:
			if err != nil {
				t.Errorf("Settled() = %v, want nil", err)
			}
		default:
			t.Error("Settled() waits on after trust came back")
		}
	})
}

// A session without trust for one time-out is given up. One that is trusted again lives on, and
// each lapse has its own time.
func TestSessionIsGivenUpOneTimeoutAfterALapse(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		reconnect(s)
		renew := func() { // the second write shows that the leader knows of the first
			confirm(s)
			time.Sleep(s.cfg.Tick)
			confirm(s)
		}
		lapse := func() (overdue chan struct{}) {
			renew()
			overdue = make(chan struct{})
			told := 0
			s.Trust.Hold(func(error) { told++ }, func() { close(overdue) })
			time.Sleep(trustOf(s))
			for range 2 {
				if s.Trust.Left() > 0 || told != 1 || s.Trust.Trusted() || s.Trust.Held() != 0 {
					t.Errorf("trusted: %v, told %d times, %d holds, want the holder to be told once", s.Trust.Trusted(), told, s.Trust.Held())
				}
			}
			return overdue
		}
		first := lapse()
		second := lapse()
		await(t, "the first hold to be overdue", first)
		synctest.Wait()
		if err := s.Status.Err(); err != nil {
			t.Errorf("the session was given up (%v) one time-out after a lapse that had ended", err)
		}
		renew()
		await(t, "the second hold to be overdue", second)
		synctest.Wait()
		if err := s.Status.Err(); err != nil {
			t.Errorf("the session was given up (%v) although it is trusted again", err)
		}
		third := lapse()
		time.Sleep(s.Trust.Timeout() - 1)
		if err := s.Status.Err(); err != nil {
			t.Errorf("the session was given up (%v) before its time", err)
		}
		await(t, "the third hold to be overdue", third)
		synctest.Wait()
		if err := s.Status.Err(); !errors.Is(err, ErrGivenUp) {
			t.Errorf("Err() = %v one time-out after trust ran out, want %v", err, ErrGivenUp)
		}
	})
}

// The goroutines of a session tell holders of the end of trust in time, although nothing else looks
// at the clock, and wake every watch at the end of the session.
func TestSessionLooksAtItsClock(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		reconnect(s)
		confirm(s)
		s.run()
		began, lost := time.Now(), make(chan struct{})
		s.Trust.Hold(func(error) { close(lost) }, func() {})
		await(t, "the holder to be told", lost)
		if after := time.Since(began); after != trustOf(s) {
			t.Errorf("the holder was told after %v, want %v", after, trustOf(s))
		}
		s.requests.onState(zk.StateDisconnected)
		w := s.Watches.Of("/a", OnNode, nil)
		await(t, "an answer to the watch", w.Armed())
		s.Trust.die(ErrExpired)
		await(t, "the watch at the end of the session", w.Woken())
	})
}

// Everything that waits for a session ends when trust runs out or with the session, as it says.
func TestEndsWakeThoseThatWait(t *testing.T) {
	t.Parallel()
	waits := map[string]func(s *Session) error{
		"AwaitUp": func(s *Session) error { return s.Status.AwaitUp(context.Background()) },
		"Await":   func(s *Session) error { return s.Status.Await(context.Background(), nil) },
		"Settled": func(s *Session) error { return s.Status.Settled() },
		"Retry":   func(s *Session) error { return s.Status.Retry() },
	}
	for name, wait := range waits {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				for _, lapses := range []bool{true, false} {
					s := alone(t)
					reconnect(s)
					confirm(s)
					s.requests.onState(zk.StateDisconnected)
					got := make(chan error, 1)
					s.Status.Go(func() { got <- wait(s) })
					synctest.Wait()
					want := ErrExpired
					if lapses {
						time.Sleep(trustOf(s))
						s.Trust.Trusted()
						synctest.Wait()
					}
					if lapses && (name == "AwaitUp" || name == "Await") { // the others are for work that must not give up
						want = errNoQuorum
					} else {
						if len(got) > 0 {
							t.Errorf("%s() = %v before the end of the session", name, <-got)
						}
						s.Trust.die(ErrExpired)
						s.Trust.die(ErrGivenUp) // the first reason stays
						synctest.Wait()
					}
					select {
					case err := <-got:
						if !errors.Is(err, want) {
							t.Errorf("%s() = %v, want %v", name, err, want)
						}
					default:
						t.Errorf("%s() still waits after %v", name, want)
					}
				}
			})
		})
	}
}

// Nothing begins after the end of a session.
func TestNothingBeginsAfterTheEnd(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s := alone(t)
		gen := reconnect(s)
		confirm(s)
		told := 0
		s.Trust.Hold(func(err error) {
			told++
			if !errors.Is(err, ErrExpired) || !errors.Is(err, driver.ErrLeaseLost) {
				t.Errorf("told of %v, want %v because of %v", err, driver.ErrLeaseLost, ErrExpired)
			}
		}, func() {})
		s.Trust.die(ErrExpired)
		s.Trust.die(ErrClosed)
		if told != 1 || !errors.Is(s.Status.Err(), ErrExpired) || s.Trust.Held() != 0 {
			t.Errorf("told %d times, Err() = %v, %d holds, want one end by %v", told, s.Status.Err(), s.Trust.Held(), ErrExpired)
		}
		if s.Status.Go(func() { t.Error("Go() has run a function after the end") }) {
			t.Error("Go() = true after the end")
		}
		if s.Trust.acknowledge(gen, s.Status.now(), s.Status.now()) || s.Trust.Trusted() {
			t.Error("a write was acknowledged after the end")
		}
		if err := s.Status.Pause(); !errors.Is(err, ErrExpired) {
			t.Errorf("Pause() = %v after the end, want %v", err, ErrExpired)
		}
		if _, err := s.requests.confirmation(); err == nil {
			t.Error("a deciding read may be sent after the end")
		}
		for range cap(s.Reads.slots) {
			if _, err := s.Reads.ask("/a", nil, true); err == nil {
				t.Error("ask() = nil after the end")
			}
			s.Reads.slots <- struct{}{}
		}
		if _, err := s.Reads.ask("/a", nil, true); !errors.Is(err, ErrExpired) {
			t.Errorf("ask() = %v without a slot after the end, want %v", err, ErrExpired)
		}
		if err := s.Pulse.Barrier(context.Background()); !errors.Is(err, ErrExpired) {
			t.Errorf("Barrier() = %v after the end, want %v", err, ErrExpired)
		}
		w := s.Watches.Of("/a", OnNode, nil)
		await(t, "an answer to a watch after the end", w.Armed())
		await(t, "a watch after the end", w.Woken())
		if _, err := w.Found(); !errors.Is(err, ErrExpired) || s.Watches.all[WatchKey{"/a", OnNode}] != nil {
			t.Errorf("Found() = %v after the end, want %v", err, ErrExpired)
		}
	})
}
