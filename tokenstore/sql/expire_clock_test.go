package sqlstore

import (
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// The clock of the database is a day ahead of the process's, so a time is over for the database
// alone. The key stays until the process's clock says so too.
func TestClockOfTheDatabaseThatJumpedForgetsNothing(t *testing.T) {
	t.Parallel()
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
