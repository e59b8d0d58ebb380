package sqlstore

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// The clock of the database is a day ahead of the process's, so a time is over for the database
// alone. The key stays until the process's clock says so too.
func TestClockOfTheDatabaseThatJumpedForgetsNothing(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s, late := b.store(t, p, WithExpiry(0)), b.store(t, p, WithExpiry(0))
		late.config.wall = func() time.Time { return time.Now().Add(-25 * time.Hour) }
		id, a := begin(t, s, "paid")
		settle(t, s, id, driver.Settlement{Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: 24 * time.Hour})
		pass(t, s, 24*time.Hour+time.Minute)
		if n, err := late.Expire(t.Context(), 1000); err != nil || n != 0 {
			t.Errorf("Expire() = %d, %v, want 0", n, err)
		}
		if rec, err := late.Get(t.Context(), id); err != nil || rec.State != driver.StateCompleted {
			t.Errorf("Get() = %v, %v, want %v", rec.State, err, driver.StateCompleted)
		}
		if res, err := late.Begin(t.Context(), id, request(9)); err != nil || res.Begun {
			t.Errorf("Begin() = begun %v, %v, want the completed record", res.Begun, err)
		}
		if n, err := s.Expire(t.Context(), 1000); err != nil || n != 1 {
			t.Errorf("Expire() by two clocks that agree = %d, %v, want 1", n, err)
		}
	})
}

// An expiry that fails again and again lets the table grow, so the service is told.
func TestFailedExpiryIsReported(t *testing.T) {
	onEach(t, func(t *testing.T, b backend) {
		failed := make(chan error, 1)
		p := b.migrated(t)
		s := b.store(t, p, WithExpiry(10*time.Millisecond), WithExpiryFailed(func(_ context.Context, err error) {
			select {
			case failed <- err:
			default:
			}
		}))
		mustExec(t, s.db, s.names.sql("DROP TABLE {bindings}"))
		if err := <-failed; !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("the expiry failed with %v, want %v", err, driver.ErrUnavailable)
		}
	})
}
