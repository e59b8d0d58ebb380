package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/line"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

func TestReadersWaitForTheLastWriterBefore(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		roles  []string // the last one is the place that is asked about
		turn   bool
		behind int
	}{
		{[]string{"read"}, true, 0},
		{[]string{"read", "read"}, true, 0},
		{[]string{"write", "read"}, false, 0},
		{[]string{"write", "read", "read"}, false, 0},
		{[]string{"write", "write", "read", "read"}, false, 1},
		{[]string{"read", "write", "read", "write", "read"}, false, 3},
		{[]string{"something", "read"}, false, 0},
	} {
		line := make([]line.Position, len(tt.roles))
		for i, role := range tt.roles {
			line[i].Role = role
		}
		turn, behind := behindWriters(line, len(line)-1)
		if turn != tt.turn || !turn && behind != tt.behind {
			t.Errorf("behindWriters(%v) = %v, %d; want %v, %d", tt.roles, turn, behind, tt.turn, tt.behind)
		}
	}
}

// Everybody is served in the order of the line: readers between two writers
// together, all others alone.
func TestRWMutexIsFair(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	a, b := MustNewRWMutex(r.Client, linePath), MustNewRWMutex(r.Other, linePath)
	held := r.queue(bounded(t), a.AcquireWrite).granted()
	r1 := r.queue(bounded(t), b.AcquireRead)
	r2 := r.queue(bounded(t), a.AcquireRead)
	w3 := r.queue(bounded(t), b.AcquireWrite)
	w4 := r.queue(bounded(t), a.AcquireWrite)
	r5 := r.queue(bounded(t), a.AcquireRead)
	r6 := r.queue(bounded(t), b.AcquireRead)
	for _, c := range []*caller{r1, r2, w3, w4, r5, r6} {
		c.wantWaiting()
	}
	recipetest.Release(r, held)
	l1, l2 := r1.granted(), r2.granted()
	w3.wantWaiting()
	recipetest.Release(r, l1)
	w3.wantWaiting()
	recipetest.Release(r, l2)
	l3 := w3.granted()
	for _, c := range []*caller{w4, r5, r6} {
		c.wantWaiting()
	}
	recipetest.Release(r, l3)
	l4 := w4.granted()
	r5.wantWaiting()
	recipetest.Release(r, l4)
	l5, l6 := r5.granted(), r6.granted()
	for i, pair := range [][2]*Lease{{held, l1}, {l1, l2}, {l2, l3}, {l3, l4}, {l4, l5}, {l5, l6}} {
		if !pair[0].Fence().Before(pair[1].Fence()) {
			t.Errorf("fence %v after %v, at %d", pair[1].Fence(), pair[0].Fence(), i)
		}
	}
	recipetest.Release(r, l5)
	recipetest.Release(r, l6)
	r.wantClean(r.Client, r.Other)
}

// A reader behind a writer that gives up joins the readers before it.
func TestRWMutexReaderBehindCancelledWriter(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	a, b := MustNewRWMutex(r.Client, linePath), MustNewRWMutex(r.Other, linePath)
	first := r.queue(bounded(t), a.AcquireRead).granted()
	ctx, cancel := context.WithCancelCause(bounded(t))
	gaveUp := errors.New("gave up")
	writer := r.queue(ctx, b.AcquireWrite)
	r.watching(r.Other)
	here, there := r.queue(bounded(t), a.AcquireRead), r.queue(bounded(t), b.AcquireRead)
	here.wantWaiting()
	there.wantWaiting()
	cancel(gaveUp)
	await(t, "writer gives up", writer.answered)
	if !errors.Is(writer.err, driver.ErrLocked) || !errors.Is(writer.err, gaveUp) {
		t.Errorf("AcquireWrite() = %v, want ErrLocked and %v", writer.err, gaveUp)
	}
	l1, l2 := here.granted(), there.granted()
	for _, l := range []*Lease{first, l1, l2} {
		if _, err := l.Check(bounded(t)); err != nil {
			t.Errorf("Check() = %v", err)
		}
		recipetest.Release(r, l)
	}
	r.wantClean(r.Client, r.Other)
}

func TestRWMutexTryAcquire(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	a, b := MustNewRWMutex(r.Client, linePath), MustNewRWMutex(r.Other, linePath)
	must := func(f ask) *Lease {
		t.Helper()
		l, err := f(bounded(t))
		if err != nil {
			t.Fatalf("try = %v, want a lease", err)
		}
		return l
	}
	refused := func(what string, f ask) {
		t.Helper()
		if l, err := f(bounded(t)); !errors.Is(err, driver.ErrLocked) {
			t.Errorf("%s: try = %v, %v; want ErrLocked", what, l, err)
		}
	}
	r1, r2 := must(a.TryAcquireRead), must(b.TryAcquireRead)
	refused("write beside readers", a.TryAcquireWrite)
	r.awaitPlaces(2)
	writer := r.queue(bounded(t), a.AcquireWrite)
	refused("read behind a waiting writer", b.TryAcquireRead)
	recipetest.Release(r, r1)
	recipetest.Release(r, r2)
	w := writer.granted()
	refused("read beside a writer", b.TryAcquireRead)
	refused("write beside a writer", b.TryAcquireWrite)
	recipetest.Release(r, w)
	r.wantClean(r.Client, r.Other)
	recipetest.Release(r, must(b.TryAcquireWrite))
}

func TestRWMutexUpgradeIsRefused(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewRWMutex(r.Client, linePath)
	lease := r.queue(bounded(t), m.AcquireRead).granted()
	if err := m.Upgrade(lease); !errors.Is(err, ErrUpgrade) {
		t.Errorf("Upgrade() = %v, want %v", err, ErrUpgrade)
	}
	if _, err := lease.Check(bounded(t)); err != nil {
		t.Errorf("Check() after Upgrade() = %v, want a held lease", err)
	}
	recipetest.Release(r, lease)
}
