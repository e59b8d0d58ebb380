package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// The end of a lease leaves the next place of its owner alone.
func TestReentrantMutexTakenAgainBeforeItIsReleased(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewReentrantMutex(r.Client, linePath)
	old := hold(t, m, "me")
	old.giveUp() // and the lease is not released yet
	var next *Hold
	call := r.queue(bounded(t), func(ctx context.Context) (_ *Lease, err error) {
		next, err = m.Acquire(ctx, "me")
		return nil, err
	})
	recipetest.Release(r, old)
	call.granted()
	again, err := m.TryAcquire(bounded(t), "me")
	if err != nil || next.Count() != 2 {
		t.Fatalf("TryAcquire() by the owner = %v, %d holds, want a second one", err, next.Count())
	}
	recipetest.Release(r, again)
	recipetest.Release(r, next)
	r.wantClean(r.Client)
}

// A hold that is taken at the end of its lease is over from the start.
func TestHoldOfALeaseThatHasEnded(t *testing.T) {
	t.Parallel()
	m := MustNewReentrantMutex(open(t, sharedConfig(t)), "/m")
	h := hold(t, m, "me")
	lost := errors.Join(driver.ErrLeaseLost)
	m.end("me", h.t, lost)
	m.mu.Lock()
	late := m.hold("me", h.t)
	m.mu.Unlock()
	for name, h := range map[string]*Hold{"hold": h, "late hold": late} {
		await(t, "Done() of the "+name, h.Done())
		if err := h.Err(); !errors.Is(err, driver.ErrLeaseLost) || h.Count() != 0 {
			t.Errorf("%s: Err() = %v, %d holds, want the loss and none", name, err, h.Count())
		}
		if !h.giveUp() {
			t.Errorf("a release of the %s does not release the lease", name)
		}
	}
	releaseAll(t, []*Lease{h.t.lease})
}

// A hold tells that the servers could not be asked, for a check as for a release.
func TestHoldWithoutAConnection(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	h := hold(t, MustNewReentrantMutex(r.Client, "/m"), "me")
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	if _, err := h.Check(canceled(t)); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Check() without a connection = %v, want %v", err, driver.ErrUnavailable)
	}
	if err := h.Release(canceled(t)); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Release() without a connection = %v, want %v and its cause", err, driver.ErrUnavailable)
	}
	r.Proxy.Refuse(false)
	if err := h.Release(bounded(t)); err != nil {
		t.Errorf("Release() again = %v", err)
	}
}
