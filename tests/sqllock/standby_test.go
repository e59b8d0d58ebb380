package sqllock_test

import (
	"context"
	"errors"
	"net/url"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// The synchronous standby is gone, and somebody cancels the wait for it. The server calls that a success. A fail-over would lose the lock.
func TestLockThatTheStandbyDoesNotHaveIsNotGranted(t *testing.T) {
	t.Parallel()
	primary := testserver.StartPostgres(t)
	u, err := url.Parse(primary.URL())
	if err != nil {
		t.Fatal(err)
	}
	replication := testserver.StartTCPProxy(t, u.Host)
	testserver.StartStandby(t, replication.Addr())
	admin := open(t, "pgx", primary.URL())
	if err := sqlstore.Migrate(t.Context(), admin, dialect.PostgreSQL); err != nil {
		t.Fatal(err)
	}
	cfg, err := pgx.ParseConfig(primary.URL())
	if err != nil {
		t.Fatal(err)
	}
	cfg.RuntimeParams["application_name"] = "locks"
	unreplicated := pgxstore.WatchStandby(cfg)
	db := stdlib.OpenDB(*cfg)
	t.Cleanup(func() { _ = db.Close() })
	s := &site{backend: backends[0], db: admin}
	l := s.lockerOn(t, db, sqllock.WithUnreplicated(unreplicated), sqllock.WithTTL(longTTL))
	lease := take(t, l, request())
	count := func(of string) (n int) {
		if err := admin.QueryRowContext(context.Background(), "SELECT count(*) FROM "+of).Scan(&n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	await := func(of string) {
		t.Helper()
		for count(of) == 0 {
			if t.Context().Err() != nil {
				t.Fatal(of)
			}
		}
	}
	mustExec(t, admin, "ALTER SYSTEM SET synchronous_standby_names = '*'")
	mustExec(t, admin, "SELECT pg_reload_conf()")
	await("pg_stat_replication WHERE sync_state = 'sync'")
	replication.Refuse(true)
	replication.Cut()
	cancelled := func(call func() error) {
		t.Helper()
		done := make(chan error, 1)
		go func() { done <- call() }()
		const waiting = "pg_stat_activity WHERE application_name = 'locks' AND wait_event = 'SyncRep'"
		await(waiting)
		if n := count("(SELECT pg_cancel_backend(pid) FROM " + waiting + ") AS c"); n == 0 {
			t.Error("nothing was cancelled")
		}
		if err := <-done; !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("a call whose wait for the standby was cancelled = %v, want %v", err, driver.ErrUnavailable)
		}
	}
	cancelled(func() error { _, err := lease.Check(t.Context()); return err })
	if lease.Err() != nil {
		t.Errorf("Err() = %v, want the trust that the lease had", lease.Err())
	}
	cancelled(func() error { _, err := l.TryAcquire(t.Context(), request()); return err })
	mustExec(t, admin, "ALTER SYSTEM RESET synchronous_standby_names")
	mustExec(t, admin, "SELECT pg_reload_conf()")
}
