package recipes

import (
	"context"
	"errors"
	"math"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A refusal of an owner names the owner, and comes before anything is sent.
func TestReentrantMutexSaysWhatIsWrongWithAnOwner(t *testing.T) {
	t.Parallel()
	m := MustNewReentrantMutex(open(t, sharedConfig(t)), "/m")
	for _, owner := range []any{nil, "", []int{1}, math.NaN()} {
		if h, err := m.TryAcquire(bounded(t), owner); err == nil || !strings.Contains(err.Error(), "owner of a reentrant lock") {
			t.Errorf("TryAcquire(%v) = %v, %v, want a refusal of the owner", owner, h, err)
		}
	}
}

// The owner goes on taking holds after it has released some of them.
func TestReentrantMutexAfterAnInnerRelease(t *testing.T) {
	t.Parallel()
	m := MustNewReentrantMutex(open(t, sharedConfig(t)), "/m")
	outer, inner := hold(t, m, "me"), hold(t, m, "me")
	for range 2 {
		if err := inner.Release(bounded(t)); err != nil {
			t.Fatal(err)
		}
		var err error
		if inner, err = m.TryAcquire(bounded(t), "me"); err != nil {
			t.Fatalf("TryAcquire() by the owner after an inner release = %v", err)
		}
	}
	if inner.Fence() != outer.Fence() || outer.Count() != 2 {
		t.Errorf("fences %v and %v, %d holds, want one fence and 2", inner.Fence(), outer.Fence(), outer.Count())
	}
	inner.ReleaseInBackground()
	// From the last release on, the owner is a new one, while the lease may still be there.
	lease := outer.t.lease
	if !outer.giveUp() || holds(m, "me") != 0 || len(m.tenures) != 0 {
		t.Errorf("%d owners after the last release, want none", len(m.tenures))
	}
	releaseAll(t, []*Lease{lease})
}

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

// A version that no znode has is a conflict. Its lower half may be that of any version.
func TestRegisterVersionsOutOfRange(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	reg := MustNewRegister(r.Client, "/reg")
	if err := reg.Save(bounded(t), []byte("one"), 0); err != nil {
		t.Fatal(err)
	}
	for _, version := range []int64{-1, math.MinInt64, math.MaxInt32, math.MaxInt32 + 1, 1 << 32, 1<<32 + 1, math.MaxInt64} {
		if err := reg.Save(bounded(t), []byte("two"), version); !errors.Is(err, ErrConflict) {
			t.Errorf("Save() at version %d = %v, want %v", version, err, ErrConflict)
		}
	}
	if data, version, err := reg.Load(bounded(t)); string(data) != "one" || version != 1 || err != nil {
		t.Errorf("Load() = %s, %d, %v, want the value as it was", data, version, err)
	}
}

// A holder that nobody has asked does not hear that it should let go.
func TestHolderThatWasNotAsked(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	l, err := MustNewMutex(r.Client, "/m").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	path, _ := l.held.Where()
	counter := r.Proxy.Count(path)
	revoked := l.Revoked()
	reads := func(n int) {
		t.Helper()
		until(t, "reads of the place", func() bool {
			seen := counter.Seen()
			return seen.Unanswered == 0 && seen.Requests[testserver.OpGetData] >= n
		})
	}
	reads(2) // with the watch, and after it
	r.Proxy.Cut()
	reads(4) // once more over the next connection
	r.wantHeld(l)
	wantOpen(t, revoked)
	_ = l.Revoked() // no further watch
	r.wantHeld(l)
	releaseAll(t, []*Lease{l})
}

// A write lease that is being downgraded already stays as it is.
func TestDowngradeUnderWay(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewRWMutex(r.Client, linePath)
	writer := r.queue(bounded(t), m.AcquireWrite).granted()
	cl, other := writer.held.Table().Reserve(m.ln.path + "/" + reading + strings.TrimPrefix(writer.place.Name, writing))
	if cl == nil || other != nil {
		t.Fatalf("Reserve() = %v, %v, want a claim", cl, other)
	}
	if l, err := m.Downgrade(bounded(t), writer); !errors.Is(err, errDowngrading) || l != nil {
		t.Errorf("Downgrade() under way = %v, %v, want %v", l, err, errDowngrading)
	}
	r.wantHeld(writer)
	cl.Free()
	reader, err := m.Downgrade(bounded(t), writer)
	if err != nil {
		t.Fatalf("Downgrade() = %v", err)
	}
	releaseAll(t, []*Lease{reader})
	r.wantClean(r.Client)
}

// A downgrade that could not begin leaves no lock.
func TestDowngradeThatCannotBegin(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewRWMutex(r.Client, linePath)
	writer := r.queue(bounded(t), m.AcquireWrite).granted()
	r.Proxy.Refuse(true)
	r.Proxy.Cut()
	until(t, "the loss of the connection", func() bool { return writer.held.Table().Session.Status.Usable() != nil })
	if l, err := m.Downgrade(canceled(t), writer); l != nil || !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.Canceled) {
		t.Errorf("Downgrade() = %v, %v, want %v and its cause", l, err, driver.ErrUnavailable)
	}
	await(t, "the end of the old lease", writer.Done())
	r.Proxy.Refuse(false)
	r.wantClean(r.Client)
}

// A try for permits sets the number at a path that has none, and succeeds at once.
func TestTryAtAPathWithoutANumber(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	create(t, r.Raw, r.Config.Chroot+linePath, 0)
	l, err := MustNewSemaphore(r.Client, linePath, 2).TryAcquire(bounded(t), 1)
	if err != nil {
		t.Fatalf("TryAcquire() = %v", err)
	}
	r.wantMismatch(r.Other, 3, "has 2", "has 3")
	releaseAll(t, []*Lease{l})
}
