package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

// A call that is given up while a request is under way says so. It does not take the missing
// answer for a missing znode.
func TestCallsGivenUpUnderWay(t *testing.T) {
	t.Parallel()
	list, get, write := testserver.Op(testserver.OpGetChildren2), testserver.Op(testserver.OpGetData), testserver.Op(testserver.OpMulti)
	for name, tt := range map[string]struct {
		at   testserver.Match
		call func(r *rig, ctx context.Context) error
	}{
		"Participants, the line": {list, func(r *rig, ctx context.Context) error {
			_, err := MustNewMutex(r.Client, linePath).Participants(ctx)
			return err
		}},
		"Participants, a place": {get, func(r *rig, ctx context.Context) error {
			_, err := MustNewMutex(r.Client, linePath).Participants(ctx)
			return err
		}},
		"Leader, a place": {get, func(r *rig, ctx context.Context) error {
			_, err := MustNewElection(r.Client, linePath, "").Leader(ctx)
			return err
		}},
		"Revoke, the line":  {list, func(r *rig, ctx context.Context) error { return MustNewMutex(r.Client, linePath).Revoke(ctx) }},
		"Revoke, the place": {get, func(r *rig, ctx context.Context) error { return MustNewMutex(r.Client, linePath).Revoke(ctx) }},
		"Revoke, the request": {write, func(r *rig, ctx context.Context) error {
			return MustNewMutex(r.Client, linePath).Revoke(ctx)
		}},
		"Load": {get, func(r *rig, ctx context.Context) error {
			_, _, err := MustNewRegister(r.Client, linePath).Load(ctx)
			return err
		}},
		"Save": {write, func(r *rig, ctx context.Context) error {
			return MustNewRegister(r.Client, linePath).Save(ctx, []byte("new"), 1)
		}},
		"Save, the parents": {write, func(r *rig, ctx context.Context) error {
			return MustNewRegister(r.Client, linePath+"/not/there").Save(ctx, []byte("new"), 0)
		}},
		"TryAcquire of permits, their number": {get, func(r *rig, ctx context.Context) error {
			_, err := MustNewSemaphore(r.Client, linePath, 2).TryAcquire(ctx, 1)
			return err
		}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			holder, err := MustNewMutex(r.Other, linePath).Acquire(bounded(t))
			if err != nil {
				t.Fatal(err)
			}
			hold := r.Proxy.HoldNextReply(testserver.All(tt.at, testserver.Contains(r.Config.Chroot+linePath)))
			defer hold.Release()
			err = r.cancelAt(hold, func(ctx context.Context) (*Lease, error) { return nil, tt.call(r, ctx) })
			if !errors.Is(err, driver.ErrUnavailable) && !errors.Is(err, driver.ErrLocked) || !errors.Is(err, context.Canceled) {
				t.Errorf("call = %v, want the cause of its context", err)
			}
			hold.Release()
			recipetest.Release(r, holder)
			r.wantClean(r.Client)
		})
	}
}

// A waiter looks again when the waiter before it gives up. It has no lock by that.
func TestWaiterBehindAWaiterThatGivesUp(t *testing.T) {
	t.Parallel()
	r := newRig(t, 0)
	m := MustNewMutex(r.Client, linePath)
	holder := r.queue(bounded(t), m.Acquire).granted()
	ctx, cancel := context.WithCancel(bounded(t))
	second, third := r.queue(ctx, m.Acquire), r.queue(bounded(t), m.Acquire)
	cancel()
	await(t, "answer", second.answered)
	r.awaitPlaces(2)
	last := r.places()[1]
	until(t, "the third to be the heir", func() bool {
		holder.place.mu.Lock()
		defer holder.place.mu.Unlock()
		return holder.place.heir != nil && holder.place.heir.place.is(last)
	})
	third.wantWaiting()
	recipetest.Release(r, holder)
	recipetest.Release(r, third.granted())
	r.wantClean(r.Client)
}
