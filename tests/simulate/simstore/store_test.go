package simstore

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// direct is a network without faults.
func direct(_ context.Context, serve func()) error {
	serve()
	return nil
}

func TestAsAStore(t *testing.T) {
	idemtest.RunStore(t, idemtest.StoreHarness{New: func(testing.TB) driver.Store { return New().Client(checked) }})
}

func TestAsALockingStore(t *testing.T) {
	idemtest.RunLockingStore(t, func(tb testing.TB) (driver.OfferingLocker, driver.LockingStore) {
		c := New().Client(checked)
		return lockerOf(tb, c), c
	})
}

func TestAsALocker(t *testing.T) {
	idemtest.RunLocker(t, idemtest.LockerHarness{New: func(tb *testing.T) driver.Locker { return lockerOf(tb, New().Client(checked)) }})
}

func lockerOf(tb testing.TB, c *Client) *Locker {
	l := c.Locker(10 * time.Second)
	tb.Cleanup(func() { _ = l.Close(context.Background()) })
	return l
}

// checked is direct, and heeds the end of a context as every caller does.
func checked(ctx context.Context, serve func()) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return direct(ctx, serve)
}

// begin starts the attempt with this fence.
func begin(t *testing.T, s *Server, id driver.KeyID, fence uint64) (driver.BeginResult, error) {
	t.Helper()
	return s.Client(direct).Begin(t.Context(), id, driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: fence}, Nonce: driver.Nonce{byte(fence)}})
}

// A fail-over loses the latest changes and keeps the others.
func TestFallBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, early, late := New(), idem.NewKeyID("s", "early"), idem.NewKeyID("s", "late")
		for _, id := range []driver.KeyID{early, late} {
			if res, err := begin(t, s, id, 1); err != nil || !res.Begun {
				t.Fatalf("Begin(%v) = %v, %v, want begun", id, res.Begun, err)
			}
			time.Sleep(time.Minute)
		}
		if changed := s.FallBack(90 * time.Second); len(changed) != 1 || changed[0] != late {
			t.Errorf("FallBack(90s) = %v, want %v", changed, late)
		}
		if a, b := s.Record(early).State, s.Record(late).State; a != driver.StatePending || b != driver.StateNone {
			t.Errorf("after the fail-over the records are %v and %v, want pending and none", a, b)
		}
	})
}

// A store that has lost everything says so until the loss is accepted.
func TestLoseAll(t *testing.T) {
	s, id := New(), idem.NewKeyID("s", "k")
	if _, err := begin(t, s, id, 1); err != nil {
		t.Fatal(err)
	}
	s.LoseAll(false)
	if _, err := s.Client(direct).Get(t.Context(), id); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Get() after the loss = %v, want %v", err, driver.ErrStoreLost)
	}
	if _, err := begin(t, s, id, 2); !errors.Is(err, driver.ErrStoreLost) {
		t.Errorf("Begin() after the loss = %v, want %v", err, driver.ErrStoreLost)
	}
	s.Accept()
	if res, err := begin(t, s, id, 2); err != nil || !res.Begun {
		t.Errorf("Begin() after the acceptance = %v, %v, want begun", res.Begun, err)
	}
}
