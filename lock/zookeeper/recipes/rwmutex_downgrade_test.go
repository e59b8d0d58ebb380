package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A writer becomes a reader while readers and writers wait. A witness that looks
// at the server sees it at the head of the line all the time.
func TestDowngradeUnderContention(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	a, b := MustNewRWMutex(r.Client, linePath), MustNewRWMutex(r.Other, linePath)
	held := r.queue(bounded(t), a.AcquireWrite).granted()
	near := []*caller{r.queue(bounded(t), b.AcquireRead), r.queue(bounded(t), a.AcquireRead)}
	writer := r.queue(bounded(t), b.AcquireWrite)
	far := r.queue(bounded(t), a.AcquireRead)

	stop, stopped := make(chan struct{}), make(chan struct{})
	seq := held.place.Seq
	go func() {
		defer close(stopped)
		for {
			if all := r.places(); len(all) == 0 || all[0].Seq != seq {
				t.Errorf("line is %v, want %d at its head", all, seq)
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	lease, err := a.Downgrade(bounded(t), held)
	if err != nil {
		t.Fatalf("Downgrade() = %v", err)
	}
	var got []*Lease
	for _, c := range near {
		got = append(got, c.granted())
	}
	writer.wantWaiting()
	far.wantWaiting()
	r.wantDowngraded(held, lease)
	close(stop)
	<-stopped

	recipetest.Release(r, held) // does nothing any more
	for _, l := range got {
		recipetest.Release(r, l)
	}
	r.wantDowngraded(held, lease)
	writer.wantWaiting()
	recipetest.Release(r, lease)
	w := writer.granted()
	if !lease.Fence().Before(w.Fence()) {
		t.Errorf("fence %v after %v", w.Fence(), lease.Fence())
	}
	far.wantWaiting()
	recipetest.Release(r, w)
	recipetest.Release(r, far.granted())
	r.wantClean(r.Client, r.Other)
}

// wantDowngraded says that one lease has taken the place of another.
func (r *rig) wantDowngraded(old, lease *Lease) {
	r.Helper()
	if _, err := lease.Check(bounded(r)); err != nil {
		r.Errorf("Check() = %v, want a held lease", err)
	}
	if lease.Fence() != old.Fence() {
		r.Errorf("fence %v, want the writer's %v", lease.Fence(), old.Fence())
	}
	if all := r.places(); len(all) == 0 || all[0].Name != lease.place.Name || all[0].Role != reading || all[0].Seq != old.place.Seq {
		r.Errorf("line is %v, want a reader with number %d first", all, old.place.Seq)
	}
	await(r, "the old lease ends", old.Done())
	if err := old.Err(); err != nil {
		r.Errorf("Err() of the old lease = %v, want none", err)
	}
	if _, err := old.Check(bounded(r)); !errors.Is(err, driver.ErrLeaseLost) {
		r.Errorf("Check() of the old lease = %v, want %v", err, driver.ErrLeaseLost)
	}
}

// A lease that cannot be downgraded stays what it is.
func TestDowngradeOfSomethingElse(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewRWMutex(r.Client, linePath)
	read := r.queue(bounded(t), m.AcquireRead).granted()
	foreign := r.call(bounded(t), MustNewRWMutex(r.Client, "/another").AcquireWrite).granted()
	mutex := r.call(bounded(t), MustNewMutex(r.Client, "/mutex").Acquire).granted()
	elsewhere := r.call(bounded(t), MustNewRWMutex(r.Other, "/elsewhere").AcquireWrite).granted()
	if l, err := m.Downgrade(bounded(t), nil); l != nil || !errors.Is(err, errNotWriteLease) {
		t.Errorf("Downgrade(nil) = %v, %v", l, err)
	}
	if l, err := MustNewRWMutex(r.Client, "/elsewhere").Downgrade(bounded(t), elsewhere); l != nil || !errors.Is(err, errNotWriteLease) {
		t.Errorf("Downgrade() of another client's lease = %v, %v", l, err)
	}
	for name, lease := range map[string]*Lease{"read": read, "foreign": foreign, "mutex": mutex} {
		if l, err := m.Downgrade(bounded(t), lease); l != nil || !errors.Is(err, errNotWriteLease) {
			t.Errorf("%s: Downgrade() = %v, %v; want %v", name, l, err, errNotWriteLease)
		}
		if _, err := lease.Check(bounded(t)); err != nil {
			t.Errorf("%s: Check() = %v, want a held lease", name, err)
		}
		recipetest.Release(r, lease)
	}
	recipetest.Release(r, elsewhere)
}

// Of several who downgrade one lease at once, one gets the read lock.
func TestDowngradeTwice(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewRWMutex(r.Client, linePath)
	held := r.queue(bounded(t), m.AcquireWrite).granted()
	var calls []*caller
	for range 4 {
		calls = append(calls, r.call(bounded(t), func(ctx context.Context) (*Lease, error) { return m.Downgrade(ctx, held) }))
	}
	var won []*Lease
	for _, c := range calls {
		await(t, "answer", c.answered)
		switch {
		case c.err == nil:
			won = append(won, c.lease)
		case !errors.Is(c.err, driver.ErrLeaseLost) && !errors.Is(c.err, errDowngrading):
			t.Errorf("Downgrade() = %v", c.err)
		}
	}
	if len(won) != 1 {
		t.Fatalf("%d of %d calls won, want 1", len(won), len(calls))
	}
	r.wantDowngraded(held, won[0])
	recipetest.Release(r, won[0])
	r.wantClean(r.Client)
}
