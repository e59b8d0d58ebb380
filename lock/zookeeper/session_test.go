package zookeeper

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// wantLost waits for a lease to be lost.
func (r *rig) wantLost(l *Lease) {
	r.Helper()
	await(r, "lease lost", l.Done())
	if err := l.Err(); !errors.Is(err, driver.ErrLeaseLost) {
		r.Errorf("Err() = %v, want %v", err, driver.ErrLeaseLost)
	}
	if left, err := l.Check(bounded(r)); !errors.Is(err, driver.ErrLeaseLost) {
		r.Errorf("Check() = %v, %v; want %v", left, err, driver.ErrLeaseLost)
	}
}

// The server ends the session while all is well with the connection.
func TestKilledSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	old := sessionOf(r.c)
	connection := connOf(t, old)
	until(t, "session killed", func() bool {
		// Our client may be back sooner than the killer has done its work.
		err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], old.session.Status.ID(), password(r.proxy))
		return err == nil || old.session.Status.Err() != nil
	})
	next := r.takeSoon(r.other)
	r.wantLost(lease)
	r.release(lease) // does nothing
	until(t, "another session", func() bool { s, err := r.c.usable(); return err == nil && s != old })
	r.idle(r.c)
	r.wantHeld(next)
	r.release(next)
	again := r.take(r.l)
	if !next.Fence().Before(again.Fence()) {
		t.Errorf("fence %v after %v", again.Fence(), next.Fence())
	}
	if got := connection.SessionID(); got != old.session.Status.ID() && got != 0 {
		t.Errorf("the old connection has moved on to session %x", got)
	}
	r.release(again)
}

// A delete is on its way when the session expires. The library would send it in
// the next session.
func TestReleaseAcrossExpiry(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	old := sessionOf(r.c)
	conn := connOf(t, old)
	connect := r.proxy.HoldNext(testserver.Op(testserver.OpConnect))
	r.proxy.Cut()
	await(t, "reconnect", connect.Held())
	// Deletes in the library's own queue, past the pin and all other care: what
	// is called after the library has started over is kept for a new session.
	var wg sync.WaitGroup
	defer wg.Wait()
	for range 4 {
		wg.Go(func() {
			for err := zk.ErrNoServer; errors.Is(err, zk.ErrNoServer); {
				err = conn.Delete(r.path, -1)
			}
		})
	}
	lease.ReleaseInBackground()
	if err := testserver.KillSession(testserver.SharedZooKeeper(t)[0], old.session.Status.ID(), password(r.proxy)); err != nil {
		t.Fatalf("KillSession() = %v", err)
	}
	next := r.takeSoon(r.other)
	connect.Release()
	await(t, "old session over", old.session.Status.Over())
	wg.Wait()
	until(t, "another session", func() bool { _, err := r.c.usable(); return err == nil })
	r.idle(r.c)
	r.wantHeld(next)
	r.release(next)
}

func TestUnreachable(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name   string
		break1 func(p *testserver.Proxy)
	}{
		{"black hole", func(p *testserver.Proxy) { p.BlackHole(testserver.Both) }},
		{"answers swallowed", func(p *testserver.Proxy) { p.BlackHole(testserver.ToClient) }},
		{"requests swallowed", func(p *testserver.Proxy) { p.BlackHole(testserver.ToServer) }},
		{"cut and refused", func(p *testserver.Proxy) { p.Refuse(true); p.Cut() }},
		{"cut and stalled", func(p *testserver.Proxy) { p.StallAccept(true); p.Cut() }},
		{"frozen", func(p *testserver.Proxy) { p.Freeze(testserver.Both) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 3*time.Second)
			lease := r.take(r.l)
			waiting := make(chan error, 1)
			go func() { waiting <- r.l.Wait(context.Background(), r.id) }()
			tt.break1(r.proxy)

			// Safety: the next owner cannot have the lock before the lease is
			// over, whenever that is.
			next := r.takeSoon(r.other)
			select {
			case <-lease.Done():
			default:
				t.Error("another owner has the lock while the lease is still believed in")
			}
			r.wantLost(lease)
			if err := <-waiting; err != nil && !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Wait() = %v", err)
			}
			// Nothing hangs, whatever context is given.
			if _, err := r.l.TryAcquire(context.Background(), request(r.id)); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrUnavailable)
			}
			if err := r.l.Ping(context.Background()); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Ping() = %v, want %v", err, driver.ErrUnavailable)
			}
			if err := r.l.Wait(context.Background(), r.id); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Wait() = %v, want %v", err, driver.ErrUnavailable)
			}
			lease.ReleaseInBackground()

			r.proxy.Restore()
			until(t, "usable again", func() bool { return r.l.Ping(bounded(t)) == nil })
			r.idle(r.c)
			r.wantHeld(next)
			r.release(next)
			r.release(r.takeSoon(r.l))
		})
	}
}

// A lease is lost for good, also when its session turns out to be alive. Then
// its lock has to go.
func TestLostLeaseOfALivingSession(t *testing.T) {
	t.Parallel()
	for _, released := range []bool{false, true} {
		t.Run(fmt.Sprintf("released %v", released), func(t *testing.T) {
			t.Parallel()
			r, clock := stillFor(t, 3*time.Second)
			lease := r.take(r.l)
			s := sessionOf(r.c)
			lapse(t, lease, clock)
			r.wantLost(lease)
			if !r.exists() {
				t.Error("the lock is gone before its holder can have stopped")
			}
			if released {
				r.release(lease)
				if r.exists() {
					t.Error("the lock is there after Release()")
				}
			}
			next := r.takeSoon(r.other)
			r.wantLost(lease)
			if sessionOf(r.c) != s {
				t.Error("the session did not survive, the test tests nothing")
			}
			r.idle(r.c)
			r.release(next)
		})
	}
}

func TestCloseReleasesAtOnce(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease, behind := r.take(r.l), newID()
	second, err := r.l.TryAcquire(bounded(t), request(behind))
	if err != nil {
		t.Fatal(err)
	}
	second.ReleaseInBackground()
	if err := r.c.Close(bounded(t)); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if ok, _, err := r.raw.Exists(r.cfg.lockPath(behind)); ok || err != nil {
		t.Errorf("a lock being released is there after Close() (%v)", err)
	}
	if r.exists() {
		t.Error("a held lock is there after Close()")
	}
	r.wantLost(lease)
	r.release(r.take(r.other))
	if _, err := r.l.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() after Close() = %v", err)
	}
	if err := r.c.Close(bounded(t)); err != nil {
		t.Errorf("second Close() = %v", err)
	}
}

// No call of a closed client succeeds, whatever it asks.
func TestClosedClientServesNoCall(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	if err := r.c.Close(bounded(t)); err != nil {
		t.Fatal(err)
	}
	for name, call := range map[string]func() error{
		"TryAcquire": func() error { _, err := r.l.TryAcquire(bounded(t), request(r.id)); return err },
		"Wait":       func() error { return r.l.Wait(bounded(t), r.id) },
		"Ping":       func() error { return r.l.Ping(bounded(t)) },
		"HeldBy":     func() error { _, _, err := r.l.HeldBy(bounded(t), r.id); return err },
		"RemoveMarkers": func() error {
			_, err := r.l.RemoveMarkers(bounded(t), MarkerRemoval{Retention: 1})
			return err
		},
		"OpenParents": func() error { _, err := r.c.OpenParents(bounded(t)); return err },
		"RenewDomain": func() error { _, err := r.l.RenewDomain(bounded(t), driver.Fence{}); return err },
		"Behind":      func() error { _, err := r.l.Behind(bounded(t), driver.Fence{}); return err },
	} {
		if err := call(); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() = %v, want %v", name, err, driver.ErrUnavailable)
		}
	}
}

func TestCloseIsBounded(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	r.proxy.BlackHole(testserver.Both)
	lease.ReleaseInBackground()
	ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
	defer cancel()
	if err := r.c.Close(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("Close() = %v, want %v", err, context.DeadlineExceeded)
	}
	if err := lease.Release(bounded(t)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release() = %v, want %v", err, driver.ErrUnavailable)
	}
}

func TestAbandonLeavesTheLockToTheSession(t *testing.T) {
	t.Parallel()
	r := newRig(t, 3*time.Second)
	lease := r.take(r.l)
	r.c.Abandon()
	r.wantLost(lease)
	if err := lease.Release(bounded(t)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release() of a lock that stays = %v, want %v", err, driver.ErrUnavailable)
	}
	if _, err := r.other.TryAcquire(bounded(t), request(r.id)); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() right after Abandon() = %v, want %v", err, driver.ErrLocked)
	}
	r.release(r.takeSoon(r.other)) // when the session has timed out
}
