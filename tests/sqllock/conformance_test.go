package sqllock_test

import (
	"log/slog"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
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

// The store in the same PostgreSQL takes and gives back the locks in its own statements.
func TestLockingStore(t *testing.T) {
	t.Parallel()
	onThose(t, func(b *backend) bool { return b.dialect == dialect.PostgreSQL }, func(t *testing.T, s *site) {
		idemtest.RunLockingStore(t, func(tb testing.TB) (driver.OfferingLocker, driver.LockingStore) { return s.withStore(tb) })
	})
}

// withStore returns a locker, and a store on the same pool.
func (s *site) withStore(tb testing.TB, opts ...sqllock.Option) (*sqllock.Locker, *sqlstore.Store) {
	tb.Helper()
	db := open(tb, s.driver(), s.dsn)
	store, err := sqlstore.New(tb.Context(), db, s.dialect, sqlstore.WithExpiry(0), sqlstore.WithLogger(slog.New(slog.DiscardHandler)))
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = store.Close() })
	return s.lockerOn(tb, db, opts...), store
}
