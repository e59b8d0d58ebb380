package sqllock_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestWhatCannotWorkIsRefused(t *testing.T) {
	t.Parallel()
	one := sql.OpenDB(nil)
	defer one.Close()
	one.SetMaxOpenConns(1)
	for want, of := range map[string]func() error{
		"no database":             func() error { _, err := sqllock.New(t.Context(), nil, dialect.PostgreSQL); return err },
		"no dialect":              func() error { _, err := sqllock.New(t.Context(), one, "Oracle", nil); return err },
		"use lock/memory":         func() error { _, err := sqllock.New(t.Context(), one, dialect.SQLite); return err },
		"pool has one connection": func() error { _, err := sqllock.New(t.Context(), one, dialect.MySQL); return err },
		"table prefix": func() error {
			_, err := sqllock.NewInspector(t.Context(), one, dialect.MySQL, sqllock.WithTablePrefix("a b"))
			return err
		},
		"too short": func() error {
			_, err := sqllock.New(t.Context(), one, dialect.MySQL, sqllock.WithTTL(time.Second-1), sqllock.WithHeartbeatPool(one))
			return err
		},
	} {
		if err := of(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("New() = %v, want %q", err, want)
		}
	}
}

func TestDatabaseWithoutTheTablesIsRefused(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		_, err := sqllock.New(t.Context(), s.db, s.dialect, sqllock.WithTablePrefix("other_"))
		if !errors.Is(err, sqllock.ErrNotMigrated) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("New() = %v, want %v", err, sqllock.ErrNotMigrated)
		}
		other := map[dialect.Dialect]dialect.Dialect{dialect.PostgreSQL: dialect.MySQL, dialect.MySQL: dialect.PostgreSQL}[s.dialect]
		if _, err := sqllock.New(t.Context(), s.db, other); !errors.Is(err, dialect.ErrWrong) {
			t.Errorf("New() = %v, want %v", err, dialect.ErrWrong)
		}
	})
}

// The user of a service has the rights that idemctl store grants prints. Without one of them New fails.
func TestRights(t *testing.T) {
	t.Parallel()
	// The pooler knows one user.
	onThose(t, func(b *backend) bool { return b.name != "PgBouncer" }, func(t *testing.T, s *site) {
		name, db := s.user(t)
		grants, err := sqlstore.Grants(t.Context(), s.db, s.dialect, sqlstore.RoleService, name)
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range grants {
			mustExec(t, s.db, g)
		}
		l, req := s.cleaner(t, db), request()
		release(t, take(t, l, req))
		s.do(t, "UPDATE {locks} SET expires = 1")
		if err := l.Ping(t.Context()); err != nil {
			t.Error(err)
		}
		until(t, "the row is removed", func() bool { return s.rowOf(t, req.KeyID) == nil })
		to := " FROM " + name
		if s.dialect == dialect.MySQL {
			to = " FROM '" + name + "'@'%'"
		}
		for table, rights := range map[string][]string{"idem_locks": {"SELECT", "INSERT", "UPDATE", "DELETE"}, "idem_lock_domain": {"SELECT", "UPDATE"}} {
			for _, right := range rights {
				mustExec(t, s.db, "REVOKE "+right+" ON "+table+to)
				if l, err := sqllock.New(t.Context(), db, s.dialect, quiet()); err == nil || !strings.Contains(err.Error(), "store grants") {
					t.Errorf("New() without %s on %s = %v, %v, want an error about rights", right, table, l, err)
				}
				mustExec(t, s.db, "GRANT "+right+" ON "+table+strings.Replace(to, "FROM", "TO", 1))
			}
		}
	})
}

// The answer to an INSERT is lost. The lock that it has taken is given back, because nobody has its lease.
func TestLostReply(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		db, proxy := s.behindProxy(t)
		l, other, req := s.lockerOn(t, db), s.locker(t), request()
		release(t, take(t, l, request())) // the statement is prepared
		lost := proxy.DropNextReply(testserver.Contains(fmt.Sprintf("%d@", os.Getpid())))
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if lease, err := l.TryAcquire(ctx, req); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("TryAcquire() = %v, %v without an answer, want %v", lease, err, driver.ErrUnavailable)
		}
		await(t, "the request", lost)
		release(t, takeSoon(t, other, again(req)))
	})
}

// behindProxy returns a pool whose connections go through a proxy.
func (s *site) behindProxy(tb testing.TB) (*sql.DB, *testserver.Proxy) {
	tb.Helper()
	if s.dialect == dialect.PostgreSQL {
		u, err := url.Parse(s.dsn)
		if err != nil {
			tb.Fatal(err)
		}
		proxy := testserver.StartTCPProxy(tb, u.Host)
		u.Host = proxy.Addr()
		return open(tb, "pgx", u.String()), proxy
	}
	cfg, err := mysqldriver.ParseDSN(s.dsn)
	if err != nil {
		tb.Fatal(err)
	}
	proxy := testserver.StartTCPProxy(tb, cfg.Addr)
	cfg.Addr = proxy.Addr()
	return open(tb, "mysql", cfg.FormatDSN()), proxy
}

// user makes a user of the database without rights.
func (s *site) user(tb testing.TB) (name string, db *sql.DB) {
	tb.Helper()
	name = freshName()
	if s.dialect == dialect.PostgreSQL {
		mustExec(tb, s.db, "CREATE ROLE "+name+" LOGIN")
		tb.Cleanup(func() { mustExec(tb, s.db, "DROP OWNED BY "+name); mustExec(tb, s.db, "DROP ROLE "+name) })
		u, err := url.Parse(s.dsn)
		if err != nil {
			tb.Fatal(err)
		}
		u.User = url.User(name)
		return name, open(tb, "pgx", u.String())
	}
	mustExec(tb, s.db, "CREATE USER '"+name+"'@'%'")
	tb.Cleanup(func() { mustExec(tb, s.db, "DROP USER '"+name+"'@'%'") })
	cfg, err := mysqldriver.ParseDSN(s.dsn)
	if err != nil {
		tb.Fatal(err)
	}
	cfg.User, cfg.Passwd = name, ""
	return name, open(tb, "mysql", cfg.FormatDSN())
}

// isolated returns a pool whose sessions have a default isolation level.
func (s *site) isolated(tb testing.TB, level string) *sql.DB {
	tb.Helper()
	if s.dialect == dialect.PostgreSQL {
		mustExec(tb, s.db, "ALTER DATABASE "+s.database(tb)+" SET default_transaction_isolation = '"+strings.ToLower(level)+"'")
		return open(tb, "pgx", s.dsn)
	}
	cfg, err := mysqldriver.ParseDSN(s.dsn)
	if err != nil {
		tb.Fatal(err)
	}
	variable := "transaction_isolation"
	if s.name == "MariaDB" {
		variable = "tx_isolation" // until MariaDB 11.1
	}
	cfg.Params = map[string]string{variable: "'" + strings.ReplaceAll(level, " ", "-") + "'"}
	return open(tb, "mysql", cfg.FormatDSN())
}

func (s *site) database(tb testing.TB) (name string) {
	tb.Helper()
	if err := s.db.QueryRowContext(tb.Context(), "SELECT current_database()").Scan(&name); err != nil {
		tb.Fatal(err)
	}
	return name
}

// Every request works at every isolation level, with callers of one key and of many at once.
func TestIsolationLevels(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		for _, level := range []string{"READ COMMITTED", "REPEATABLE READ", "SERIALIZABLE"} {
			l := s.cleaner(t, s.isolated(t, level))
			ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
			defer cancel()
			shared := request()
			var owners sync.Mutex // the lock under test guards it, too
			var all sync.WaitGroup
			for range 12 {
				all.Go(func() {
					for _, req := range []driver.LockRequest{request(), again(shared)} {
						lease, err := driver.Acquire(ctx, l, req)
						if err != nil {
							t.Errorf("%s: Acquire() = %v", level, err)
							return
						}
						if req.KeyID == shared.KeyID && !owners.TryLock() {
							t.Errorf("%s: two owners", level)
							return
						}
						if _, err := lease.Check(ctx); err != nil {
							t.Errorf("%s: Check() = %v", level, err)
						}
						if req.KeyID == shared.KeyID {
							owners.Unlock()
						}
						if err := lease.Release(ctx); err != nil {
							t.Errorf("%s: Release() = %v", level, err)
						}
					}
				})
			}
			all.Wait()
			s.do(t, "UPDATE {locks} SET expires = 1")
			until(t, level+": the rows of free locks are removed", func() bool { return s.rowOf(t, shared.KeyID) == nil })
		}
	})
}

// Others have left a session of the pool so that it commits nothing. A lock in it would be nobody's for all others.
func TestLeftSessionTakesNoLock(t *testing.T) {
	t.Parallel()
	// A session of PostgreSQL cannot be left so.
	onThose(t, func(b *backend) bool { return b.dialect == dialect.MySQL }, func(t *testing.T, s *site) {
		db := open(t, s.driver(), s.dsn)
		db.SetMaxOpenConns(2)
		l := s.lockerOn(t, db, sqllock.WithTTL(longTTL))
		lease := take(t, l, request())
		mustExec(t, db, "SET autocommit = 0")
		if _, err := l.TryAcquire(t.Context(), request()); !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "autocommit") {
			t.Errorf("TryAcquire() = %v, want %v because of autocommit", err, driver.ErrUnavailable)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := lease.Release(ctx); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Release() = %v, want %v", err, driver.ErrUnavailable)
		}
		mustExec(t, db, "SET autocommit = 1")
	})
}

// Others have left a session of the pool with a clock that they have set. A lock that is held does not look as if it were
// over there, and one that is taken there does not end early.
func TestSessionWithASetClock(t *testing.T) {
	t.Parallel()
	// Nobody can set the clock of a session of PostgreSQL.
	onThose(t, func(b *backend) bool { return b.dialect == dialect.MySQL }, func(t *testing.T, s *site) {
		db := open(t, s.driver(), s.dsn)
		db.SetMaxOpenConns(2)
		skewed, other := s.lockerOn(t, db), s.locker(t)
		for _, by := range []string{"-30", "-3600", "+30", "+3600"} {
			mustExec(t, db, "SET timestamp = DEFAULT")
			mustExec(t, db, "SET timestamp = UNIX_TIMESTAMP()"+by)
			held, taken := request(), request()
			lease := take(t, other, held)
			wantLocked(t, skewed, again(held))
			take(t, skewed, taken)
			wantLocked(t, other, again(taken))
			release(t, lease)
			release(t, take(t, skewed, again(held)))
			if lease.Err() != nil || t.Failed() {
				t.Fatalf("with a clock that is %s s wrong", by)
			}
		}
	})
}

// An operator and a service are told that the database cannot be reached.
func TestDatabaseThatIsAway(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, s *site) {
		db := open(t, s.driver(), s.dsn)
		inspector, err := sqllock.NewInspector(t.Context(), db, s.dialect)
		if err != nil {
			t.Fatal(err)
		}
		l := s.lockerOn(t, db, sqllock.WithTTL(longTTL))
		lease := take(t, l, request())
		gone, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := lease.Check(gone); err == nil {
			t.Error("Check() of a caller who is gone = <nil>, want an error")
		}
		if err := db.Close(); err != nil {
			t.Fatal(err)
		}
		_, lockErr := l.DomainOf(t.Context(), request().KeyID)
		id := request().KeyID
		_, _, heldErr := inspector.HeldBy(t.Context(), id)
		_, domainErr := inspector.DomainOf(t.Context(), id)
		_, newErr := sqllock.New(t.Context(), db, s.dialect)
		_, inspectorErr := sqllock.NewInspector(t.Context(), db, s.dialect)
		_, takeErr := l.TryAcquire(t.Context(), request())
		for call, err := range map[string]error{"HeldBy": heldErr, "DomainOf of a locker": lockErr, "Release": lease.Release(gone), "DomainOf": domainErr, "New": newErr, "NewInspector": inspectorErr,
			"TryAcquire": takeErr, "Wait": l.Wait(t.Context(), id), "Ping": l.Ping(t.Context())} {
			if !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%s = %v, want %v", call, err, driver.ErrUnavailable)
			}
		}
	})
}
