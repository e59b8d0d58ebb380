package sqllock_test

import (
	"context"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// onPostgres runs a test with a locker and a store on one pool.
func onPostgres(t *testing.T, test func(t *testing.T, s *site, l *sqllock.Locker, store *sqlstore.Store)) {
	t.Helper()
	onThose(t, func(b *backend) bool { return b.dialect == dialect.PostgreSQL }, func(t *testing.T, s *site) {
		l, store := s.withStore(t)
		test(t, s, l, store)
	})
}

// begin offers a lock and lets the store take it.
func begin(tb testing.TB, l *sqllock.Locker, store *sqlstore.Store, req driver.LockRequest) (driver.LockOffer, driver.LockedBegin) {
	tb.Helper()
	ctx, cancel := context.WithTimeout(tb.Context(), patience)
	defer cancel()
	offer, err := l.Offer(ctx, req)
	if err != nil {
		tb.Fatal(err)
	}
	res, err := store.BeginLocked(ctx, req.KeyID, driver.BeginRequest{Nonce: req.Nonce}, offer.Lock())
	if err != nil {
		tb.Fatalf("BeginLocked() = %v", err)
	}
	return offer, res
}

// The clock was set back after a lock was taken. A store that finds it taken makes it end as a locker does.
func TestLockThatAStoreFindsStaysForOneTimeToLive(t *testing.T) {
	t.Parallel()
	onPostgres(t, func(t *testing.T, s *site, l *sqllock.Locker, store *sqlstore.Store) {
		req := request()
		begin(t, l, store, req)
		s.do(t, "UPDATE {locks} SET expires = expires + 900000000 WHERE k = ?", req.KeyID[:])
		if _, res := begin(t, l, store, again(req)); !res.Locked {
			t.Errorf("BeginLocked() = %+v, want it locked", res)
		}
		if left := s.rowOf(t, req.KeyID).left; left > sqllock.DefaultTTL || left < sqllock.DefaultTTL/2 {
			t.Errorf("the lock stays for %v, want at most %v", left, sqllock.DefaultTTL)
		}
	})
}
