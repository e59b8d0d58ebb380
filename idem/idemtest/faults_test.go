package idemtest_test

import (
	"context"
	"errors"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestFaultyStore(t *testing.T) {
	ctx, id := context.Background(), driver.KeyID{1}
	req := driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: 1}, Nonce: driver.NewNonce()}
	setup := func() *idemtest.FaultyStore { return idemtest.NewFaultyStore(memorystore.New()) }
	want := func(t *testing.T, f *idemtest.FaultyStore, state driver.State) {
		t.Helper()
		if rec, err := f.Store().Get(ctx, id); err != nil || rec.State != state {
			t.Errorf("Get(%v) = %v, %v, want %v", id, rec.State, err, state)
		}
	}

	t.Run("fail before", func(t *testing.T) {
		f := setup()
		f.FailBefore("Begin", 2, nil)
		if _, err := f.Begin(ctx, driver.KeyID{2}, req); err != nil {
			t.Errorf("Begin() = %v, want <nil>", err)
		}
		if _, err := f.Begin(ctx, id, req); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("second Begin() = %v, want %v", err, driver.ErrUnavailable)
		}
		want(t, f, driver.StateNone)
		if _, err := f.Begin(ctx, id, req); err != nil {
			t.Errorf("third Begin() = %v, want <nil>", err)
		}
		if n := f.Calls("Begin"); n != 3 {
			t.Errorf(`Calls("Begin") = %d, want 3`, n)
		}
	})
	t.Run("every call, until healed", func(t *testing.T) {
		f, boom := setup(), errors.New("boom")
		f.FailBefore("Begin", idemtest.Every, boom)
		for range 3 {
			if _, err := f.Begin(ctx, id, req); !errors.Is(err, boom) {
				t.Errorf("Begin() = %v, want %v", err, boom)
			}
		}
		f.Heal("Begin")
		if _, err := f.Begin(ctx, id, req); err != nil {
			t.Errorf("Begin() once healed = %v, want <nil>", err)
		}
	})
	t.Run("lose the reply", func(t *testing.T) {
		f := setup()
		f.LoseReply("Begin", 1, nil)
		if res, err := f.Begin(ctx, id, req); !errors.Is(err, driver.ErrUnavailable) || res.Begun {
			t.Errorf("Begin() = %v, %v, want %v", res.Begun, err, driver.ErrUnavailable)
		}
		want(t, f, driver.StatePending)
	})
	t.Run("slow until released", func(t *testing.T) {
		f := setup()
		slow := f.Slow("Begin", 1)
		done := make(chan error)
		go func() {
			_, err := f.Begin(ctx, id, req)
			done <- err
		}()
		<-slow.Arrived()
		want(t, f, driver.StateNone)
		slow.Release()
		if err := <-done; err != nil {
			t.Errorf("Begin() = %v, want <nil>", err)
		}
		want(t, f, driver.StatePending)
	})
	t.Run("slow until the context ends", func(t *testing.T) {
		f := setup()
		slow := f.Slow("Begin", 1)
		ctx, cancel := context.WithCancel(ctx)
		go func() {
			<-slow.Arrived()
			cancel()
		}()
		if _, err := f.Begin(ctx, id, req); !errors.Is(err, context.Canceled) {
			t.Errorf("Begin() = %v, want %v", err, context.Canceled)
		}
		want(t, f, driver.StateNone)
	})
	t.Run("deliver late", func(t *testing.T) {
		f := setup()
		late := f.DeliverLate("Begin", 1, nil)
		if err := late.Deliver(); err == nil {
			t.Error("Deliver() before the call = <nil>, want an error")
		}
		if _, err := f.Begin(ctx, id, req); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Begin() = %v, want %v", err, driver.ErrUnavailable)
		}
		want(t, f, driver.StateNone)
		if err := f.Abort(ctx, id, req); err != nil {
			t.Errorf("Abort() = %v, want <nil>", err)
		}
		<-late.Arrived()
		if err := late.Deliver(); !errors.Is(err, driver.ErrStaleFence) {
			t.Errorf("Deliver() = %v, want %v", err, driver.ErrStaleFence)
		}
		want(t, f, driver.StateReleased)
	})
	t.Run("a wrong name panics", func(t *testing.T) {
		defer func() {
			if recover() == nil {
				t.Error(`Calls("begin") did not panic`)
			}
		}()
		setup().Calls("begin")
	})
}

func TestFaultyLocker(t *testing.T) {
	ctx, req := context.Background(), driver.LockRequest{KeyID: driver.KeyID{1}, Nonce: driver.NewNonce()}
	f := idemtest.NewFaultyLocker(memorylock.New())
	free := func(t *testing.T) {
		t.Helper()
		lease, err := f.Locker().TryAcquire(ctx, req)
		if err != nil {
			t.Fatalf("TryAcquire() = %v, want a lease", err)
		}
		_ = lease.Release(ctx)
	}
	f.LoseReply("TryAcquire", 1, nil)
	if lease, err := f.TryAcquire(ctx, req); !errors.Is(err, driver.ErrUnavailable) || lease != nil {
		t.Errorf("TryAcquire() = %v, %v, want %v", lease, err, driver.ErrUnavailable)
	}
	free(t)

	late := f.DeliverLate("TryAcquire", 2, nil)
	if _, err := f.TryAcquire(ctx, req); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("TryAcquire() = %v, want %v", err, driver.ErrUnavailable)
	}
	if err := late.Deliver(); err != nil {
		t.Errorf("Deliver() = %v, want <nil>", err)
	}
	free(t)

	lease, err := f.TryAcquire(ctx, req)
	if err != nil {
		t.Fatalf("TryAcquire() = %v, want a lease", err)
	}
	f.FailBefore("Lease.Check", 1, driver.ErrLeaseLost)
	if _, err := lease.Check(ctx); !errors.Is(err, driver.ErrLeaseLost) {
		t.Errorf("Check() = %v, want %v", err, driver.ErrLeaseLost)
	}
	if left, err := lease.Check(ctx); err != nil || left <= 0 {
		t.Errorf("Check() = %v, %v, want a time left", left, err)
	}
	f.LoseReply("Lease.Release", 1, nil)
	if err := lease.Release(ctx); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Release() = %v, want %v", err, driver.ErrUnavailable)
	}
	free(t)
	if n := f.Calls("TryAcquire"); n != 3 {
		t.Errorf(`Calls("TryAcquire") = %d, want 3`, n)
	}
}

// markingLocker hands out leases with markers.
type markingLocker struct{ *memorylock.Locker }

func (l markingLocker) TryAcquire(ctx context.Context, req driver.LockRequest) (driver.Lease, error) {
	lease, err := l.Locker.TryAcquire(ctx, req)
	return markingLease{lease}, err
}

type markingLease struct{ driver.Lease }

func (markingLease) Marker() *driver.Marker                         { return &driver.Marker{Route: "found"} }
func (markingLease) LeavesMarkers() bool                            { return true }
func (markingLease) MarkBegun(context.Context, driver.Marker) error { return nil }
func (markingLease) MarkOnRelease(*driver.Marker)                   {}

func TestFaultyLockerKeepsMarkers(t *testing.T) {
	ctx := t.Context()
	f := idemtest.NewFaultyLocker(markingLocker{memorylock.New()})
	f.FailBefore("Lease.MarkBegun", 1, nil)
	lease, err := f.TryAcquire(ctx, driver.LockRequest{KeyID: driver.KeyID{1}})
	if err != nil {
		t.Fatalf("TryAcquire() = %v, want <nil>", err)
	}
	marking, ok := lease.(driver.MarkingLease)
	if !ok {
		t.Fatalf("TryAcquire() = %T, want an driver.MarkingLease", lease)
	}
	if m := marking.Marker(); m == nil || m.Route != "found" {
		t.Errorf("Marker() = %v, want the one of the wrapped lease", m)
	}
	if err := marking.MarkBegun(ctx, driver.Marker{}); !errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("MarkBegun() = %v, want %v", err, driver.ErrUnavailable)
	}
	if err := marking.MarkBegun(ctx, driver.Marker{}); err != nil {
		t.Errorf("second MarkBegun() = %v, want <nil>", err)
	}
	if plain, err := idemtest.NewFaultyLocker(memorylock.New()).TryAcquire(ctx, driver.LockRequest{}); err != nil {
		t.Errorf("TryAcquire() = %v, want <nil>", err)
	} else if _, ok := plain.(driver.MarkingLease); ok {
		t.Error("TryAcquire() of a locker without markers is an driver.MarkingLease")
	}
}
