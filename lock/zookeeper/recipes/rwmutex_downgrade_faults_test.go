package recipes

import (
	"context"
	"errors"
	"testing"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper/internal/recipetest"
)

func TestLostDowngrade(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		lose func(*rig) <-chan struct{}
	}{
		{"reply lost", func(r *rig) <-chan struct{} { return r.Proxy.DropNextReply(r.onLine()) }},
		{"request lost", func(r *rig) <-chan struct{} { return r.Proxy.DropNextRequest(r.onLine()) }},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			m := MustNewRWMutex(r.Client, linePath)
			held := r.queue(bounded(t), m.AcquireWrite).granted()
			writer := r.queue(bounded(t), MustNewRWMutex(r.Other, linePath).AcquireWrite)
			lost := tt.lose(r)
			lease, err := m.Downgrade(bounded(t), held)
			if err != nil {
				t.Fatalf("Downgrade() = %v", err)
			}
			await(t, "the loss", lost)
			r.wantDowngraded(held, lease)
			writer.wantWaiting()
			recipetest.Release(r, lease)
			recipetest.Release(r, writer.granted())
			r.wantClean(r.Client, r.Other)
		})
	}
}

// What goes wrong leaves neither a lease nor a znode.
func TestDowngradeFails(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		name string
		want error
		run  func(r *rig, held *Lease, downgrade ask) error
	}{
		{"given up, request late", context.Canceled, func(r *rig, _ *Lease, downgrade ask) error {
			hold := r.Proxy.HoldNext(r.onLine())
			defer hold.Release()
			return r.cancelAt(hold, downgrade)
		}},
		{"given up, reply late", context.Canceled, func(r *rig, _ *Lease, downgrade ask) error {
			hold := r.Proxy.HoldNextReply(r.onLine())
			defer hold.Release()
			return r.cancelAt(hold, downgrade)
		}},
		{"given up, request lost", context.Canceled, func(r *rig, _ *Lease, downgrade ask) error {
			connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
			defer connect.Release()
			r.Proxy.DropNextRequest(r.onLine())
			return r.cancelAt(connect, downgrade)
		}},
		{"given up before", context.Canceled, func(r *rig, _ *Lease, downgrade ask) error {
			hold := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
			defer hold.Release()
			r.Proxy.Cut()
			return r.cancelAt(hold, downgrade)
		}},
		{"session over meanwhile", driver.ErrLeaseLost, func(r *rig, _ *Lease, downgrade ask) error {
			hold := r.Proxy.HoldNext(r.onLine())
			call := r.call(bounded(r), downgrade)
			await(r, "held request", hold.Held())
			r.kill()
			hold.Release()
			await(r, "answer", call.answered)
			return call.err
		}},
		{"session over before", driver.ErrLeaseLost, func(r *rig, held *Lease, downgrade ask) error {
			r.kill()
			await(r, "lease lost", held.Done())
			_, err := downgrade(bounded(r))
			return err
		}},
		{"znode removed by hand", driver.ErrLeaseLost, func(r *rig, held *Lease, downgrade ask) error {
			if err := r.Raw.Delete(pathOf(held), -1); err != nil {
				r.Fatal(err)
			}
			_, err := downgrade(bounded(r))
			return err
		}},
		{"znode removed by hand, request lost", driver.ErrLeaseLost, func(r *rig, held *Lease, downgrade ask) error {
			path := pathOf(held)
			connect := r.Proxy.HoldNext(testserver.Op(testserver.OpConnect))
			defer connect.Release()
			lost := r.Proxy.DropNextRequest(r.onLine())
			call := r.call(bounded(r), downgrade)
			await(r, "lost request", lost)
			if err := r.Raw.Delete(path, -1); err != nil {
				r.Fatal(err)
			}
			connect.Release()
			await(r, "answer", call.answered)
			return call.err
		}},
		{"refused by the servers", zk.ErrNoAuth, func(r *rig, _ *Lease, downgrade ask) error {
			line := r.Config.Chroot + linePath
			allow := func(perms int32) {
				if _, err := r.Raw.SetACL(line, zk.WorldACL(perms), -1); err != nil {
					r.Fatal(err)
				}
			}
			allow(zk.PermAll &^ zk.PermCreate)
			defer allow(zk.PermAll)
			_, err := downgrade(bounded(r))
			return err
		}},
		{"released", driver.ErrLeaseLost, func(r *rig, held *Lease, downgrade ask) error {
			recipetest.Release(r, held)
			_, err := downgrade(bounded(r))
			return err
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := newRig(t, 0)
			m := MustNewRWMutex(r.Client, linePath)
			held := r.queue(bounded(t), m.AcquireWrite).granted()
			err := tt.run(r, held, func(ctx context.Context) (*Lease, error) { return m.Downgrade(ctx, held) })
			if !errors.Is(err, tt.want) || !errors.Is(err, driver.ErrLeaseLost) && !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("Downgrade() = %v, want %v", err, tt.want)
			}
			await(t, "the old lease ends", held.Done())
			if err := held.Release(bounded(t)); err != nil {
				t.Errorf("Release() = %v", err)
			}
			r.wantClean(r.Client)
			until(t, "a session", func() bool { _, err := clientOf(r.Client).Table(); return err == nil })
			recipetest.Release(r, r.queue(bounded(t), m.AcquireWrite).granted())
		})
	}
}

// cancelAt makes a call and cancels it when something is held back.
func (r *rig) cancelAt(hold *testserver.Hold, f ask) error {
	r.Helper()
	ctx, cancel := context.WithCancel(bounded(r))
	defer cancel()
	go func() { <-hold.Held(); cancel() }()
	lease, err := f(ctx)
	if lease != nil {
		r.Errorf("call = %v, want none", lease)
	}
	return err
}
