package zookeeper

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/session"
)

// The machine is suspended: the lease clock jumps, and the timers stand still. What
// they are set to is too far away for any of these tests.

// still is a client whose lease clock stands still until a test moves it.
func still(t testing.TB) (r *rig, clock *leaseclock.Manual) {
	t.Helper()
	return stillFor(t, 0)
}

// stillFor is still with a session time-out; 0: the default.
func stillFor(t testing.TB, session time.Duration) (r *rig, clock *leaseclock.Manual) {
	t.Helper()
	clock = leaseclock.NewManual()
	r = newRig(t, session)
	cfg := r.cfg
	cfg.now = clock.Now
	r.c = open(t, cfg)
	r.l = r.c.Locker()
	return r, clock
}

// lapse makes the trust in a lease run out, by a clock that runs ahead of a heartbeat.
// The session lives on.
func lapse(t testing.TB, lease *Lease, clock *leaseclock.Manual) {
	t.Helper()
	until(t, "lease lost", func() bool {
		clock.Advance(lease.held.Table().Session.Trust.Timeout())
		return lease.Err() != nil
	})
	until(t, "trusted again", func() bool {
		if err := lease.held.Table().Session.Pulse.FinalBarrier(); err != nil {
			t.Fatalf("FinalBarrier() = %v", err)
		}
		clock.Advance(testTick)
		return lease.held.Table().Session.Trust.Trusted()
	})
}

// suspend moves the clock past all trust, and keeps the servers from answering.
func (r *rig) suspend(clock *leaseclock.Manual) {
	r.proxy.Freeze(testserver.Both)
	clock.Advance(r.cfg.SessionTimeout)
}

func TestSuspendedHolderIsTold(t *testing.T) {
	t.Parallel()
	// A Check that cannot ask the servers has nothing but the clock.
	ended, end := context.WithCancel(t.Context())
	end()
	for name, ask := range map[string]func(driver.Lease) error{
		"by Err": func(lease driver.Lease) error { return lease.Err() },
		"by Check": func(lease driver.Lease) error {
			_, err := lease.Check(ended)
			return err
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r, clock := still(t)
			leases := map[string]driver.Lease{"a lock": r.take(r.l)}
			for what, lease := range leases {
				if err := ask(lease); errors.Is(err, driver.ErrLeaseLost) {
					t.Fatalf("%s, before: %v", what, err)
				}
			}
			r.suspend(clock)
			for what, lease := range leases {
				if err := ask(lease); !errors.Is(err, driver.ErrLeaseLost) {
					t.Errorf("%s, after a suspension: %v, want %v", what, err, driver.ErrLeaseLost)
				}
				select {
				case <-lease.Done():
				default:
					t.Errorf("%s: Done() is not closed where the loss is told", what)
				}
			}
		})
	}
}

// A holder that only waits for Done is told soon after the machine has woken up.
func TestSuspendedHolderIsWoken(t *testing.T) {
	t.Parallel()
	r, clock := still(t)
	lease := r.take(r.l)
	r.suspend(clock)
	await(t, "Done() after a suspension", lease.Done())
	r.wantLost(lease)
}

// The machine is suspended while a lock is taken. The answer comes too late.
func TestSuspendedWhileTakingALock(t *testing.T) {
	t.Parallel()
	r, clock := still(t)
	hold := r.proxy.HoldNextReply(testserver.All(testserver.Op(testserver.OpMulti), testserver.Contains(r.path)))
	got := make(chan error, 1)
	go func() {
		_, err := r.l.TryAcquire(bounded(t), request(r.id))
		got <- err
	}()
	await(t, "answer", hold.Held())
	clock.Advance(r.cfg.SessionTimeout)
	hold.Release()
	if err := <-got; !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrUnavailable)
	}
	r.release(r.takeSoon(r.other)) // it was removed
}

// deadlineOf is until when the leases of a client are trusted.
func deadlineOf(c *Client) leaseclock.Instant {
	return c.cfg.now().Add(sessionOf(c).session.Trust.Left())
}

// Only an acknowledged write renews the trust in a lease: neither a read that is
// answered does, nor what a server sends by itself, nor the answer to a ping.
func TestOnlyWritesRenewTrust(t *testing.T) {
	t.Parallel()
	t.Run("a read does not", func(t *testing.T) {
		t.Parallel()
		r, clock := still(t)
		lease := r.take(r.l)
		before := deadlineOf(r.c)
		clock.Advance(time.Second) // less than a heartbeat
		if n, err := sessionOf(r.c).session.Reads.Hint(r.path, session.OfNode); err != nil || !n.Exists {
			t.Fatalf("hint() = %+v, %v", n, err)
		}
		if left, err := lease.Check(bounded(t)); err != nil || left != before.Sub(clock.Now()) {
			t.Errorf("Check() = %v, %v; want %v", left, err, before.Sub(clock.Now()))
		}
		if after := deadlineOf(r.c); after != before {
			t.Errorf("reads have renewed the trust by %v", after.Sub(before))
		}
	})
	t.Run("an event of a watch does not", func(t *testing.T) {
		t.Parallel()
		r, clock := still(t)
		w := sessionOf(r.c).session.Watches.Of(r.path, session.OnExists, nil)
		await(t, "watch", w.Armed())
		before := deadlineOf(r.c)
		clock.Advance(time.Second)
		other := r.take(r.other)
		await(t, "event", w.Woken())
		if after := deadlineOf(r.c); after != before {
			t.Errorf("an event has renewed the trust by %v", after.Sub(before))
		}
		r.release(other)
	})
	t.Run("an answer to a ping does not", func(t *testing.T) {
		t.Parallel()
		cfg, clock := sharedConfig(t), leaseclock.NewManual() // pings every 2 s
		proxy := testserver.StartZooKeeperProxy(t, cfg.Servers[0])
		cfg.Servers, cfg.now = []string{proxy.Addr()}, clock.Now
		c := open(t, cfg)
		before := deadlineOf(c)
		clock.Advance(time.Millisecond)
		hold := proxy.HoldNextReply(testserver.Op(testserver.OpPing))
		await(t, "answer to a ping", hold.Held())
		again := proxy.HoldNext(testserver.Op(testserver.OpPing))
		hold.Release()
		await(t, "next ping", again.Held())
		again.Release()
		if after := deadlineOf(c); after != before {
			t.Errorf("a ping has renewed the trust by %v", after.Sub(before))
		}
	})
	t.Run("a write does", func(t *testing.T) {
		t.Parallel()
		r, clock := still(t)
		before := deadlineOf(r.c)
		clock.Advance(time.Second)
		if err := r.l.Ping(bounded(t)); err != nil {
			t.Fatal(err)
		}
		if after := deadlineOf(r.c); !after.After(before) {
			t.Error("an acknowledged write has not renewed the trust")
		}
	})
}
