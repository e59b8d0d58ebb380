package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// asks are the calls for a lock that look at the line in different ways.
func (r *rig) asks() map[string]ask {
	m, rw, sem := MustNewMutex(r.Client, linePath), MustNewRWMutex(r.Client, linePath), MustNewSemaphore(r.Client, linePath, 2)
	return map[string]ask{
		"Mutex.Acquire": m.Acquire, "Mutex.TryAcquire": m.TryAcquire,
		"RWMutex.AcquireRead": rw.AcquireRead, "RWMutex.TryAcquireRead": rw.TryAcquireRead,
		"Semaphore.Acquire":    func(ctx context.Context) (*Lease, error) { return sem.Acquire(ctx, 1) },
		"Semaphore.TryAcquire": func(ctx context.Context) (*Lease, error) { return sem.TryAcquire(ctx, 1) },
	}
}

// A caller that may take a place but not read the line is told so at once, and leaves no place.
func TestLineThatMayNotBeRead(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	path := r.Config.Chroot + linePath
	if _, err := r.Raw.Create(path, nil, 0, zk.WorldACL(zk.PermAll&^zk.PermRead)); err != nil {
		t.Fatal(err)
	}
	for name, f := range r.asks() {
		ctx := bounded(t)
		if l, err := f(ctx); l != nil || !errors.Is(err, zk.ErrNoAuth) || ctx.Err() != nil {
			t.Errorf("%s() = %v, %v, want %v at once", name, l, err, zk.ErrNoAuth)
		}
	}
	if _, err := r.Raw.SetACL(path, zk.WorldACL(zk.PermAll), -1); err != nil {
		t.Fatal(err)
	}
	r.wantClean(r.Client)
}

// A call that is given up at its first look says so, and leaves no place. A try whose place was
// removed by hand before that look has no lock.
func TestFirstLook(t *testing.T) {
	t.Parallel()
	look := func(r *rig) testserver.Match {
		return testserver.All(testserver.Op(testserver.OpGetChildren2), testserver.Contains(r.Config.Chroot+linePath))
	}
	for _, name := range []string{"Mutex.Acquire", "Mutex.TryAcquire", "RWMutex.AcquireRead", "RWMutex.TryAcquireRead", "Semaphore.Acquire", "Semaphore.TryAcquire"} {
		t.Run("given up, "+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			reply := r.Proxy.HoldNextReply(look(r))
			defer reply.Release()
			if err := r.cancelAt(reply, r.asks()[name]); !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) {
				t.Errorf("%s() = %v, want %v and its cause", name, err, driver.ErrLocked)
			}
			reply.Release()
			r.wantClean(r.Client)
		})
	}
	for _, name := range []string{"Mutex.TryAcquire", "RWMutex.TryAcquireRead", "Semaphore.TryAcquire"} {
		t.Run("removed, "+name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			request := r.Proxy.HoldNext(look(r))
			defer request.Release()
			call := r.call(bounded(t), r.asks()[name])
			await(t, "the look", request.Held())
			r.removeLine()
			request.Release()
			await(t, "answer", call.answered)
			if call.lease != nil || !errors.Is(call.err, driver.ErrLeaseLost) {
				t.Errorf("%s() = %v, %v, want %v", name, call.lease, call.err, driver.ErrLeaseLost)
			}
			r.wantClean(r.Client)
		})
	}
}
