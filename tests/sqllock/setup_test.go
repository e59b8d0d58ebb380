package sqllock_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/url"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/sqllocks"
	"github.com/idemkeeper/idemkeeper/internal/test/locktest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) {
	_ = mysqldriver.SetLogger(log.New(io.Discard, "", 0)) // it writes of each lost connection
	testserver.ParallelTests(4)                           // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}

const patience = locktest.Patience

var (
	request    = locktest.Request
	again      = locktest.Again
	take       = locktest.Take
	takeSoon   = locktest.TakeSoon
	release    = locktest.Release
	wantLocked = locktest.WantLocked
	await      = locktest.Await
	wantLost   = locktest.WantLost
)

// backend is a database on which a test runs.
type backend struct {
	name    string
	dialect dialect.Dialect
	dsn     func(tb testing.TB) string // of a new database
}

func (b backend) driver() string {
	if b.dialect == dialect.PostgreSQL {
		return "pgx"
	}
	return "mysql"
}

// backends are the databases. A test on one that this machine cannot have is skipped.
var backends = []backend{
	{"PostgreSQL", dialect.PostgreSQL, func(tb testing.TB) string {
		tb.Helper()
		return inURL(tb, testserver.SharedPostgres(tb), makePostgres(tb))
	}},
	{"PgBouncer", dialect.PostgreSQL, func(tb testing.TB) string {
		tb.Helper()
		return testserver.SharedPgBouncer(tb).URL(makePostgres(tb))
	}},
	{"MariaDB", dialect.MySQL, func(tb testing.TB) string {
		tb.Helper()
		return makeMySQL(tb, testserver.SharedMariaDB(tb))
	}},
	{"MySQL", dialect.MySQL, func(tb testing.TB) string {
		tb.Helper()
		return makeMySQL(tb, testserver.SharedMySQL(tb))
	}},
}

// onEach runs a test on each database. It begins when the calling test has returned.
func onEach(t *testing.T, test func(t *testing.T, s *site)) {
	t.Helper()
	onThose(t, func(*backend) bool { return true }, test)
}

// onThose runs a test on the databases that it concerns.
func onThose(t *testing.T, concerns func(*backend) bool, test func(t *testing.T, s *site)) {
	t.Helper()
	for _, b := range backends {
		if !concerns(&b) {
			continue
		}
		t.Run(b.name, func(t *testing.T) {
			t.Parallel()
			test(t, newSite(t, b))
		})
	}
}

var databases atomic.Int64

func freshName() string { return fmt.Sprintf("locks_%d_%d", os.Getpid(), databases.Add(1)) }

func makePostgres(tb testing.TB) (name string) {
	tb.Helper()
	name = freshName()
	admin := open(tb, "pgx", testserver.SharedPostgres(tb))
	mustExec(tb, admin, "CREATE DATABASE "+name+" STRATEGY file_copy")
	tb.Cleanup(func() { mustExec(tb, admin, "DROP DATABASE "+name+" WITH (FORCE)") })
	return name
}

func inURL(tb testing.TB, server, database string) string {
	tb.Helper()
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}
	u.Path = "/" + database
	return u.String()
}

// makeMySQL returns the data source name of a new database.
func makeMySQL(tb testing.TB, server string) string {
	tb.Helper()
	u, err := url.Parse(server)
	if err != nil {
		tb.Fatal(err)
	}
	cfg := mysqldriver.NewConfig()
	cfg.User, cfg.Net, cfg.Addr = u.User.Username(), "tcp", u.Host
	cfg.Passwd, _ = u.User.Password()
	cfg.InterpolateParams = true
	admin, name := open(tb, "mysql", cfg.FormatDSN()), freshName()
	mustExec(tb, admin, "CREATE DATABASE "+name)
	tb.Cleanup(func() { mustExec(tb, admin, "DROP DATABASE "+name) })
	cfg.DBName = name
	return cfg.FormatDSN()
}

func open(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		tb.Fatalf("sql.Open(%s) = %v", driver, err)
	}
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16)
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

func mustExec(tb testing.TB, db *sql.DB, statement string, args ...any) {
	tb.Helper()
	if _, err := db.ExecContext(context.Background(), statement, args...); err != nil {
		tb.Fatalf("%s: %v", statement, err)
	}
}

// site is a database with the tables of locks.
type site struct {
	backend
	dsn string
	db  *sql.DB // of the test itself
}

func newSite(tb testing.TB, b backend) *site {
	tb.Helper()
	dsn := b.dsn(tb)
	s := &site{b, dsn, open(tb, b.driver(), dsn)}
	if err := sqlstore.Migrate(tb.Context(), s.db, b.dialect); err != nil {
		tb.Fatal(err)
	}
	return s
}

// locker returns a locker with a pool of its own, closed when the test ends.
func (s *site) locker(tb testing.TB, opts ...sqllock.Option) *sqllock.Locker {
	tb.Helper()
	return s.lockerOn(tb, open(tb, s.driver(), s.dsn), opts...)
}

func (s *site) lockerOn(tb testing.TB, db *sql.DB, opts ...sqllock.Option) *sqllock.Locker {
	tb.Helper()
	return s.lockerIn(tb, tb.Context(), db, opts...)
}

// cleaner returns a locker that removes the rows of free locks all the time, and not every minute.
func (s *site) cleaner(tb testing.TB, db *sql.DB) *sqllock.Locker {
	tb.Helper()
	return s.lockerIn(tb, sqllocks.WithCleaning(tb.Context(), 5*time.Millisecond), db)
}

func (s *site) lockerIn(tb testing.TB, ctx context.Context, db *sql.DB, opts ...sqllock.Option) *sqllock.Locker { //nolint:revive // the test comes first everywhere
	tb.Helper()
	l, err := sqllock.New(ctx, db, s.dialect, append([]sqllock.Option{quiet()}, opts...)...)
	if err != nil {
		tb.Fatalf("New() = %v, want <nil>", err)
	}
	tb.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), time.Second) // the server may be gone
		defer cancel()
		_ = l.Close(ctx)
	})
	return l
}

// sql writes the names of the tables into a statement, and the rest as Dialect.Statement.
func (s *site) sql(statement string) string {
	d := sqldialect.Of(s.dialect)
	return d.Statement(strings.NewReplacer("{locks}", d.Table("", "idem_locks"), "{domain}", d.Table("", "idem_lock_domain")).Replace(statement))
}

// do runs a statement with the tables as {locks} and {domain}.
func (s *site) do(tb testing.TB, statement string, args ...any) {
	tb.Helper()
	mustExec(tb, s.db, s.sql(statement), args...)
}

func quiet() sqllock.Option { return sqllock.WithLogger(slog.New(slog.DiscardHandler)) }

// until waits for a condition.
func until(tb testing.TB, what string, holds func() bool) {
	tb.Helper()
	for deadline := time.Now().Add(patience); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			tb.Fatalf("never happened: %s", what)
		}
	}
}
