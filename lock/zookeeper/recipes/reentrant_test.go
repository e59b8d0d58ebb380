package recipes

import (
	"context"
	"errors"
	"math"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

func hold(t testing.TB, m *ReentrantMutex, owner any) *Hold {
	t.Helper()
	h, err := m.Acquire(bounded(t), owner)
	if err != nil {
		t.Fatalf("Acquire(%v) = %v", owner, err)
	}
	return h
}

func TestReentrantMutexCountsHolds(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m, same := MustNewReentrantMutex(r.Client, "/m"), MustNewReentrantMutex(r.Client, "/m")
	a, b := hold(t, m, "me"), hold(t, m, "me")
	c, err := m.TryAcquire(bounded(t), "me")
	if err != nil {
		t.Fatalf("TryAcquire() by the owner = %v", err)
	}
	if a.Fence() != b.Fence() || a.Count() != 3 {
		t.Errorf("fences %v and %v, %d holds; want one fence and 3", a.Fence(), b.Fence(), a.Count())
	}
	refused := func() {
		t.Helper()
		if h, err := m.TryAcquire(bounded(t), "you"); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("TryAcquire() by another = %v, %v; want ErrLocked", h, err)
		}
		if h, err := same.TryAcquire(bounded(t), "me"); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("TryAcquire() of another mutex = %v, %v; want ErrLocked", h, err)
		}
	}
	refused()
	for range 2 {
		if err := b.Release(bounded(t)); err != nil {
			t.Errorf("Release() = %v", err)
		}
		b.ReleaseInBackground()
	}
	await(t, "Done", b.Done())
	if _, err := b.Check(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) || b.Err() != nil {
		t.Errorf("after Release(): Check() = %v, Err() = %v", err, b.Err())
	}
	if left, err := a.Check(bounded(t)); err != nil || left <= 0 {
		t.Errorf("Check() = %v, %v; want a held one", left, err)
	}
	c.ReleaseInBackground()
	refused()
	if err := a.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
	if err := a.Release(bounded(t)); err != nil || a.Count() != 0 {
		t.Errorf("second Release() = %v, %d holds", err, a.Count())
	}
	h, err := same.TryAcquire(bounded(t), "me")
	if err != nil {
		t.Fatalf("TryAcquire() of a free lock = %v", err)
	}
	h.ReleaseInBackground()
	if n := len(m.tenures); n != 0 {
		t.Errorf("%d owners are left", n)
	}
}

// The callers of one owner have one place in line. If the caller in line gives up, the
// others go on.
func TestReentrantMutexQueuesOncePerOwner(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewReentrantMutex(r.Client, "/m")
	held, err := MustNewMutex(r.Other, "/m").Acquire(bounded(t))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(bounded(t))
	failed := make(chan error)
	go func() {
		_, err := m.Acquire(ctx, "me")
		failed <- err
	}()
	until(t, "in line", func() bool { return len(participants(t, m.m)) == 2 })
	if _, err := m.TryAcquire(bounded(t), "me"); !errors.Is(err, driver.ErrLocked) {
		t.Errorf("TryAcquire() while waiting = %v, want ErrLocked", err)
	}
	if _, err := m.Acquire(canceled(t), "me"); !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire() given up = %v, want ErrLocked and its cause", err)
	}
	const callers = 5
	var wg sync.WaitGroup
	got := make(chan *Hold, callers)
	for range callers {
		wg.Go(func() { got <- hold(t, m, "me") })
	}
	before := participants(t, m.m)
	if len(before) != 2 {
		t.Errorf("in line: %+v, want the holder and one place", before)
	}
	cancel()
	if err := <-failed; !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) {
		t.Errorf("Acquire() given up = %v, want ErrLocked and its cause", err)
	}
	until(t, "another caller in line", func() bool {
		after := participants(t, m.m)
		return len(after) == 2 && after[1].Place != before[1].Place
	})
	recipetest.Release(r, held)
	wg.Wait()
	for range callers {
		(<-got).ReleaseInBackground()
	}
	recipetest.Idle(r, r.Client)
	if p := participants(t, m.m); len(p) != 0 {
		t.Errorf("left in line: %+v", p)
	}
}

func TestReentrantMutexLost(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	var told recorder[Event]
	m := MustNewReentrantMutex(r.Client, "/m", WithListener(told.Take))
	a, b := hold(t, m, "me"), hold(t, m, "me")
	killSession(t, r.Client, r.Proxy)
	for _, h := range []*Hold{a, b} {
		await(t, "Done", h.Done())
		if n := h.Count(); n != 0 {
			t.Errorf("Count() = %d after the loss, want 0", n)
		}
		if _, err := h.Check(bounded(t)); !errors.Is(err, driver.ErrLeaseLost) || !errors.Is(h.Err(), driver.ErrLeaseLost) {
			t.Errorf("Check() = %v, Err() = %v; want ErrLeaseLost", err, h.Err())
		}
	}
	again := hold(t, m, "me")
	if !a.Fence().Before(again.Fence()) || again.Count() != 1 {
		t.Errorf("fence %v after %v, %d holds", again.Fence(), a.Fence(), again.Count())
	}
	a.ReleaseInBackground() // counts for the lease that was lost
	if err := b.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
	if _, err := again.Check(bounded(t)); err != nil {
		t.Errorf("Check() = %v", err)
	}
	if err := again.Release(bounded(t)); err != nil {
		t.Errorf("Release() = %v", err)
	}
	wantStates(t, told.Wait(t, 4), Acquired, Lost, Acquired, Released)
}

func TestReentrantMutexRevoked(t *testing.T) {
	t.Parallel()
	c := crowd(t, 2)
	m := MustNewReentrantMutex(c[0], "/m")
	h := hold(t, m, "me")
	if err := MustNewReentrantMutex(c[1], "/m").Revoke(bounded(t)); err != nil {
		t.Fatal(err)
	}
	await(t, "Revoked()", h.Revoked())
	if p, err := m.Participants(bounded(t)); err != nil || len(p) != 1 || !p[0].Revoked {
		t.Errorf("Participants() = %+v, %v", p, err)
	}
	h.ReleaseInBackground()
}

func TestReentrantMutexRefusesOwners(t *testing.T) {
	t.Parallel()
	m := MustNewReentrantMutex(&zookeeper.Client{}, "/m")
	for _, owner := range []any{nil, "", []int{1}, map[string]int{}, func() {}, [1]any{[]int{}}, math.NaN()} {
		h, err := m.Acquire(bounded(t), owner)
		again, tried := m.TryAcquire(bounded(t), owner)
		if h != nil || again != nil || err == nil || tried == nil || !strings.Contains(err.Error(), "owner of a reentrant lock") {
			t.Errorf("Acquire(%v) = %v and TryAcquire() = %v, want a refusal of the owner", owner, err, tried)
		}
	}
}
