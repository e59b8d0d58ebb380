package sqllock

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

func TestLocker(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		first, second := s.locker(t), s.locker(t)
		idemtest.RunLocker(t, idemtest.LockerHarness{
			Rounds: 3,
			New:    func(*testing.T) driver.Locker { return first },
			Second: func(*testing.T, driver.Locker) driver.Locker { return second },
			Lose: func(t *testing.T, _ driver.Locker, id driver.KeyID, lease driver.Lease) {
				s.do(t, "UPDATE {locks} SET owner = NULL WHERE k = ?", id[:])
				_, _ = lease.Check(t.Context()) // notices
			},
		})
	})
}
