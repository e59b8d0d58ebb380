package zookeeper

import (
	"context"
	"errors"
	"path"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/held"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/zktest"
)

func TestOperatorDeletesTheLock(t *testing.T) {
	t.Parallel()
	t.Run("noticed at check", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 0)
		lease := r.take(r.l)
		r.wantHeld(lease)
		if err := r.raw.Delete(r.path, -1); err != nil {
			t.Fatal(err)
		}
		if _, err := lease.Check(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) {
			t.Errorf("Check() = %v, want %v", err, driver.ErrLeaseLost)
		}
		r.wantLost(lease)
		next := r.take(r.other)
		r.release(lease)
		r.wantHeld(next)
		r.idle(r.c)
	})
	t.Run("noticed at check when another owner has come", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 0)
		lease := r.take(r.l)
		if err := r.raw.Delete(r.path, -1); err != nil {
			t.Fatal(err)
		}
		next := r.take(r.other)
		r.wantLostAtCheck(lease)
		r.idle(r.c)
		requests := r.proxy.Count(r.path)
		r.wantLostAtCheck(lease)
		if n := requests.Seen().Total(); n != 0 {
			t.Errorf("Check() of a lost lease made %d requests, want 0", n)
		}
		r.wantHeld(next)
		r.release(next)
		r.release(r.take(r.l)) // nobody has released the lost lease
	})
	t.Run("release spares the next owner", func(t *testing.T) {
		t.Parallel()
		r := newRig(t, 0)
		lease := r.take(r.l)
		r.age()
		if err := r.raw.Delete(r.path, -1); err != nil {
			t.Fatal(err)
		}
		next := r.take(r.other)
		r.release(lease)
		r.wantHeld(next)
	})
	t.Run("release finds nothing", func(t *testing.T) {
		t.Parallel()
		for _, old := range []bool{false, true} {
			r := newRig(t, 0)
			lease := r.take(r.l)
			if old {
				r.age()
			}
			if err := r.raw.Delete(r.path, -1); err != nil {
				t.Fatal(err)
			}
			r.release(lease)
		}
	})
}

func (r *rig) wantLostAtCheck(l *Lease) {
	r.Helper()
	if _, err := l.Check(bounded(r)); !errors.Is(err, driver.ErrLeaseLost) {
		r.Errorf("Check() = %v, want %v", err, driver.ErrLeaseLost)
	}
	r.wantLost(l)
}

// The operator deletes the member: no write of the session gets through.
func TestOperatorDeletesTheMember(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	if err := r.raw.Delete(sessionOf(r.c).session.Member(), -1); err != nil {
		t.Fatal(err)
	}
	next := r.takeSoon(r.other) // when the heartbeat has noticed and the session is closed
	r.wantLost(lease)
	r.wantHeld(next)
	r.release(lease)
	r.wantHeld(next)
}

// A persistent znode in place of the lock that is no marker keeps everybody out,
// and is no lock that would be free some day.
func TestForeignZnodeInPlaceOfTheLock(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	create(t, r.raw, r.path, 0)
	_, err := driver.Acquire(bounded(t), r.l, request(r.id))
	if !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLocked) || !strings.Contains(err.Error(), r.path) {
		t.Errorf("Acquire() = %v, want %v that names %s", err, driver.ErrUnavailable, r.path)
	}
	if there, stat, err := r.raw.Exists(r.path); !there || err != nil || stat.Cversion != 0 {
		t.Errorf("Exists(%s) = %t, %+v, %v; want a znode that never had a child", r.path, there, stat, err)
	}
	r.idle(r.c)
}

func TestFencesGrow(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	last := driver.Fence{Domain: r.c.Domain()}
	for i := range 20 {
		l := r.take([]*Locker{r.l, r.other}[i%2])
		if !last.Before(l.Fence()) {
			t.Errorf("fence %v after %v", l.Fence(), last)
		}
		last = l.Fence()
		r.wantHeld(l)
		switch i % 3 {
		case 0:
			r.release(l)
		case 1: // its parent too
			r.release(l)
			if err := r.raw.Delete(path.Dir(r.path), -1); err != nil {
				t.Fatal(err)
			}
		case 2: // and by hand
			if err := r.raw.Delete(r.path, -1); err != nil {
				t.Fatal(err)
			}
			r.release(l)
		}
	}
}

// Somebody removes the parents all the time.
func TestParentDeletedDuringAcquire(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
				_ = r.raw.Delete(path.Dir(r.path), -1)
			}
		}
	})
	for range 15 {
		r.release(r.takeSoon(r.l)) // it may be beaten eight times in a row
	}
	close(stop)
	wg.Wait()
}

// A retry that comes while the release is on its way is not refused.
func TestAcquireWaitsForOwnRelease(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	for range 20 {
		r.take(r.l).ReleaseInBackground()
	}
}

// A lease ends while it is checked, and the answer of the servers is from before. A check
// without an answer says nothing about the lease.
func TestCheckUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	check := func(ctx context.Context, meanwhile func()) error {
		reply := r.proxy.HoldNextReply(onRead(r.path))
		checked := make(chan error, 1)
		go func() { _, err := lease.Check(ctx); checked <- err }()
		await(t, "the answer to a check", reply.Held())
		meanwhile()
		if ctx.Err() == nil {
			reply.Release()
		} else {
			defer reply.Release()
		}
		return <-checked
	}
	ctx, cancel := context.WithCancel(bounded(t))
	if err := check(ctx, cancel); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check() without an answer = %v, want %v and %v", err, driver.ErrUnavailable, context.Canceled)
	}
	r.wantHeld(lease)
	r.proxy.Refuse(true)
	r.proxy.Cut()
	until(t, "disconnected", func() bool { _, err := r.c.usable(); return err != nil })
	if _, err := lease.Check(zktest.Canceled(t)); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check() without a connection = %v, want %v and %v", err, driver.ErrUnavailable, context.Canceled)
	}
	r.proxy.Restore()
	until(t, "connected again", func() bool { _, err := r.c.usable(); return err == nil })
	r.wantHeld(lease)
	if err := check(bounded(t), lease.ReleaseInBackground); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check() of a lease that is released meanwhile = %v, want %v", err, driver.ErrLeaseLost)
	}
	r.release(lease)
}

// A caller without time is not told that the key is locked, because it did not ask.
func TestAcquireWithoutTime(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	lease := r.take(r.l)
	got, err := r.l.TryAcquire(zktest.Canceled(t), request(r.id))
	if !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) || errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() = %v, %v; want %v and %v", got, err, driver.ErrUnavailable, context.Canceled)
	}
	r.release(lease)
}

// A connection alone does not prove that the servers would take a lock.
func TestPingNeedsAnAnswer(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	write := r.proxy.HoldNext(testserver.Op(testserver.OpMulti))
	ctx, cancel := context.WithCancel(bounded(t))
	go func() { <-write.Held(); cancel() }()
	if err := r.l.Ping(ctx); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Ping() = %v, want %v and %v", err, driver.ErrUnavailable, context.Canceled)
	}
	write.Release()
	if err := r.l.Ping(bounded(t)); err != nil {
		t.Errorf("Ping() = %v", err)
	}
}

// signalContext tells that a caller waits for its end.
type signalContext struct {
	context.Context
	waited func()
}

func (c signalContext) Done() <-chan struct{} {
	c.waited()
	return c.Context.Done()
}

// The session ends when a lock was made. The caller has no lock, also if the attempt is over before
// the caller looks.
func TestSessionEndsAsALockIsMade(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	s := sessionOf(r.c)
	claim, _, err := s.table.Claim(r.path)
	if err != nil {
		t.Fatal(err)
	}
	waits := make(chan struct{})
	ctx := signalContext{bounded(t), sync.OnceFunc(func() {
		close(waits)
		await(t, "the end of the attempt", r.c.core.Keeper.Background.Idle())
	})}
	lease, err := claim.Acquire(ctx, held.Znode{Make: func(*held.Attempt) (string, int64, error) {
		<-waits
		s.session.Trust.GiveUp()
		return r.path, 1, nil
	}})
	if lease != nil || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Acquire() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
	if mine, other, err := s.table.Claim(r.path); mine != nil || other != nil || !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Claim() in an ended session = %v, %v, %v, want %v", mine, other, err, driver.ErrUnavailable)
	}
}

// A check long after the last write makes one first. If that is not acknowledged, the check
// says nothing about the lease.
func TestCheckAfterAQuietTime(t *testing.T) {
	t.Parallel()
	r, clock := still(t)
	lease := r.take(r.l)
	clock.Advance(r.cfg.SessionTimeout / 3)
	write := r.proxy.HoldNext(testserver.Op(testserver.OpMulti))
	ctx, cancel := context.WithCancel(bounded(t))
	go func() { <-write.Held(); cancel() }()
	if _, err := lease.Check(ctx); !errors.Is(err, context.Canceled) || !errors.Is(err, driver.ErrUnavailable) || errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check() without an answer = %v, want %v and %v", err, driver.ErrUnavailable, context.Canceled)
	}
	write.Release()
	until(t, "the write is acknowledged", func() bool { return !lease.held.Table().Session.Trust.Stale() })
	clock.Advance(r.cfg.SessionTimeout / 3)
	if left, err := lease.Check(bounded(t)); err != nil || left < r.cfg.SessionTimeout/2 {
		t.Errorf("Check() = %v, %v, want more than half of the session", left, err)
	}
	r.release(lease)
}
