package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/gin-gonic/gin"
	mysqldriver "github.com/go-sql-driver/mysql"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) {
	_ = mysqldriver.SetLogger(log.New(io.Discard, "", 0)) // it writes of each lost connection
	registerDrivers()
	if name := os.Getenv(envInstance); name != "" {
		fmt.Fprintln(os.Stderr, runInstance(name))
		os.Exit(1)
	}
	gin.SetMode(gin.ReleaseMode)
	testserver.ParallelTests(6) // most of them wait for a server
	goleak.VerifyTestMain(closing{testserver.M{M: m}})
}

// backend is a database on which a test runs.
type backend struct {
	name    string
	dialect dialect.Dialect
	// fresh returns the pools of an empty database, which is removed at the end of the test.
	fresh func(tb testing.TB) pools
}

func (b backend) kind() *sqldialect.Dialect { return sqldialect.Of(b.dialect) }

// pools are the connections to a database.
type pools struct {
	write, read *sql.DB
	dsn         string // of write
	far         string // in place of dsn, if write goes another way
}

// backends are the databases. A test on one that this machine cannot have is skipped as not
// run here.
func backends() []backend {
	return []backend{
		{"PostgreSQL", dialect.PostgreSQL, freshPostgres},
		{"MariaDB", dialect.MySQL, func(tb testing.TB) pools { return freshMySQL(tb, testserver.SharedMariaDB(tb)) }},
		{"MySQL", dialect.MySQL, func(tb testing.TB) pools { return freshMySQL(tb, testserver.SharedMySQL(tb)) }},
		onSQLite,
	}
}

// throughPgBouncer is PostgreSQL behind a pooler that gives each transaction another session. Its
// databases are new, because the pooler keeps connections to those of earlier tests.
var throughPgBouncer = backend{"PgBouncer", dialect.PostgreSQL, func(tb testing.TB) pools {
	tb.Helper()
	name := makePostgres(tb)
	tb.Cleanup(func() { dropPostgres(tb, name) })
	dsn := testserver.SharedPgBouncer(tb).URL(name)
	db := open(tb, "pgx", dsn)
	return pools{write: db, read: db, dsn: dsn}
}}

// pooled reports whether the database is behind PgBouncer.
func (p pools) pooled() bool {
	return strings.Contains(p.dsn, "default_query_exec_mode") && driverOf(p.dsn) == "pgx"
}

// onEach runs a test on each database, on all of them at once.
func onEach(t *testing.T, f func(t *testing.T, b backend)) {
	t.Helper()
	for _, b := range backends() {
		b.run(t, f)
	}
}

// onEachServer is onEach on the databases that are reached over a network.
func onEachServer(t *testing.T, f func(t *testing.T, b backend)) {
	t.Helper()
	for _, b := range backends() {
		if !b.kind().File {
			b.run(t, f)
		}
	}
}

// run runs a test on the database beside those on others. It begins when the calling test has
// returned.
func (b backend) run(t *testing.T, f func(t *testing.T, b backend)) {
	t.Helper()
	t.Run(b.name, func(t *testing.T) {
		t.Parallel()
		f(t, b)
	})
}

// ownServer is a server that a test may kill. It syncs to the disk.
type ownServer interface {
	Kill()
	Restart()
}

// onOwnServers runs a test on servers of its own.
func onOwnServers(t *testing.T, f func(t *testing.T, server ownServer, b backend)) {
	t.Helper()
	t.Run("PostgreSQL", func(t *testing.T) {
		server := testserver.StartPostgres(t)
		f(t, server, onPostgres("PostgreSQL", server.URL()))
	})
	for name, start := range map[string]func(testing.TB, ...string) *testserver.MariaDB{"MariaDB": testserver.StartMariaDB, "MySQL": testserver.StartMySQL} {
		t.Run(name, func(t *testing.T) {
			server := start(t)
			f(t, server, onMySQL(name, server.URL()))
		})
	}
	t.Run(compounding.name, func(t *testing.T) {
		server := testserver.StartMariaDB(t)
		f(t, server, backend{compounding.name, dialect.MySQL, func(tb testing.TB) pools { return freshMySQL(tb, server.URL()).compound(tb) }})
	})
}

// onPostgres is one database of PostgreSQL, which is empty.
func onPostgres(name, dsn string) backend {
	return backend{name, dialect.PostgreSQL, func(tb testing.TB) pools {
		tb.Helper()
		db := open(tb, driverOf(dsn), dsn)
		return pools{write: db, read: db, dsn: dsn}
	}}
}

// onMySQL is a server of MariaDB or MySQL by its URL.
func onMySQL(name, server string) backend {
	return backend{name, dialect.MySQL, func(tb testing.TB) pools { return freshMySQL(tb, server) }}
}

// onSQLite is SQLite, for tests that need no server.
var onSQLite = backend{"SQLite", dialect.SQLite, freshSQLite}

var databases int

// naming guards the counter, because tests run in parallel.
var naming sync.Mutex

// freshName returns the name of a database that does not exist on a shared server.
func freshName(testing.TB) string {
	naming.Lock()
	defer naming.Unlock()
	databases++
	return fmt.Sprintf("idem_%d_%d", os.Getpid(), databases)
}

// emptied are databases of the shared PostgreSQL whose tests have ended. To empty one takes a
// tenth of the time that the server takes to make one. Each has the pool that has emptied it, with one
// connection, because a new one costs the server as much as all that a small test sends.
var emptied struct {
	sync.Mutex
	pools map[string]*sql.DB // by name
}

func freshPostgres(tb testing.TB) pools {
	tb.Helper()
	emptied.Lock()
	var name string
	var db *sql.DB
	for name, db = range emptied.pools {
		delete(emptied.pools, name)
		break
	}
	emptied.Unlock()
	if db == nil {
		name = makePostgres(tb)
		db = dial(tb, "pgx", postgresDSN(tb, name))
	}
	tb.Cleanup(func() {
		db := dial(tb, "pgx", postgresDSN(tb, name))
		if !emptyPostgres(tb, db, name) {
			_ = db.Close()
			dropPostgres(tb, name)
			return
		}
		emptied.Lock()
		defer emptied.Unlock()
		if emptied.pools == nil {
			emptied.pools = map[string]*sql.DB{}
		}
		emptied.pools[name] = db
	})
	tb.Cleanup(func() { _ = db.Close() })
	return pools{write: db, read: db, dsn: postgresDSN(tb, name)}
}

// closing closes the pools that are left when the tests have ended, before the search for leaks.
type closing struct{ testserver.M }

func (m closing) Run() int {
	defer func() {
		if laterDir != "" {
			_ = os.RemoveAll(laterDir)
		}
		for _, db := range emptied.pools {
			_ = db.Close()
		}
		for _, db := range admins.pools {
			_ = db.Close()
		}
	}()
	return m.M.Run()
}

// admins are pools that make and drop databases, one for each server.
var admins struct {
	sync.Mutex
	pools map[string]*sql.DB // by data source name
}

func admin(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	admins.Lock()
	defer admins.Unlock()
	if admins.pools == nil {
		admins.pools = map[string]*sql.DB{}
	}
	if admins.pools[dsn] == nil {
		admins.pools[dsn] = dial(tb, driver, dsn)
	}
	return admins.pools[dsn]
}

// makePostgres makes a database on the shared PostgreSQL.
func makePostgres(tb testing.TB) (name string) {
	tb.Helper()
	name = freshName(tb)
	// To copy the files takes half of the processor time that the log of their pages takes.
	mustExec(tb, admin(tb, "pgx", testserver.SharedPostgres(tb)), "CREATE DATABASE "+name+" STRATEGY file_copy")
	return name
}

func dropPostgres(tb testing.TB, name string) {
	tb.Helper()
	mustExec(tb, admin(tb, "pgx", testserver.SharedPostgres(tb)), "DROP DATABASE "+name+" WITH (FORCE)")
}

// emptyPostgres ends the connections to a database, and removes what a test may leave in it. It returns
// false if the database is not like a new one then, because a test has replaced functions of the server or
// changed the settings of the database, which this connection has too.
func emptyPostgres(tb testing.TB, db *sql.DB, name string) (likeNew bool) {
	tb.Helper()
	const others = " FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND backend_type = 'client backend'"
	for get[int](tb, db, "SELECT count(pg_terminate_backend(pid, 1000))"+others) > 0 {
	}
	mustExec(tb, db, `DO $$ DECLARE name text; BEGIN
		FOR name IN SELECT nspname FROM pg_namespace WHERE nspname !~ '^(pg_|information_schema$)' LOOP
			EXECUTE format('DROP SCHEMA %I CASCADE', name);
		END LOOP;
	END $$`)
	mustExec(tb, db, "CREATE SCHEMA public")
	mustExec(tb, db, "GRANT USAGE ON SCHEMA public TO PUBLIC") // as in a new database
	if err := db.QueryRow(`SELECT NOT EXISTS (SELECT FROM pg_proc f, pg_database d
		WHERE d.datname = current_database() AND age(f.xmin) <= age(d.xmin))
		AND NOT EXISTS (SELECT FROM pg_db_role_setting s, pg_database d WHERE s.setdatabase = d.oid AND d.datname = current_database())`).Scan(&likeNew); err != nil {
		tb.Fatal(err)
	}
	return likeNew
}

func postgresDSN(tb testing.TB, name string) string {
	tb.Helper()
	u := parsed(tb, testserver.SharedPostgres(tb))
	u.Path = "/" + name
	return u.String()
}

// parsed parses a URL.
func parsed(tb testing.TB, text string) *url.URL {
	tb.Helper()
	u, err := url.Parse(text)
	must(tb, err)
	return u
}

// parsedMySQL parses the driver's form of a data source name.
func parsedMySQL(tb testing.TB, dsn string) *mysqldriver.Config {
	tb.Helper()
	cfg, err := mysqldriver.ParseDSN(dsn)
	must(tb, err)
	return cfg
}

// driverOf is the name of the driver of a data source name.
func driverOf(dsn string) string {
	switch {
	case strings.Contains(dsn, pipelinedDriver{}.name()):
		return pipelinedDriver{}.name()
	case strings.Contains(dsn, compoundDriver{}.name()):
		return compoundDriver{}.name()
	case strings.HasPrefix(dsn, "postgres"):
		return "pgx"
	case strings.HasPrefix(dsn, "file:"):
		return "sqlite"
	}
	return "mysql"
}

// with opens another pool of the database, with settings such as "lock_timeout=100".
func (p pools) with(tb testing.TB, settings string) *sql.DB {
	tb.Helper()
	dsn := p.dsn + "?" + settings
	if strings.Contains(p.dsn, "?") {
		dsn = p.dsn + "&" + settings
	}
	return open(tb, driverOf(dsn), dsn)
}

// proxied opens a pool of a database through a proxy.
func proxied(tb testing.TB, dsn string) (pools, *testserver.Proxy) {
	tb.Helper()
	var proxy *testserver.Proxy
	if strings.HasPrefix(dsn, "postgres") {
		u := parsed(tb, dsn)
		proxy = testserver.StartTCPProxy(tb, u.Host)
		u.Host = proxy.Addr()
		dsn = u.String()
	} else {
		cfg := parsedMySQL(tb, dsn)
		proxy = testserver.StartTCPProxy(tb, cfg.Addr)
		cfg.Addr = proxy.Addr()
		dsn = cfg.FormatDSN()
	}
	db := open(tb, driverOf(dsn), dsn)
	return pools{write: db, read: db, dsn: dsn}, proxy
}

// holds reports whether a query for a truth value says so. It is for what a test waits for, so it may fail.
func holds(db *sql.DB, query string) (so bool) {
	return db.QueryRow(query).Scan(&so) == nil && so
}

// must ends a test whose preparation has failed.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// errOf is the error of a call whose value does not matter.
func errOf[T any](_ T, err error) error { return err }

// get returns the value of a query for one.
func get[T any](tb testing.TB, db *sql.DB, query string, args ...any) (value T) {
	tb.Helper()
	if err := db.QueryRowContext(context.Background(), query, args...).Scan(&value); err != nil {
		tb.Fatalf("%s: %v", firstLine(query), err)
	}
	return value
}

func freshMySQL(tb testing.TB, server string) pools {
	tb.Helper()
	admin := open(tb, "mysql", mysqlDSN(tb, server, ""))
	name := freshName(tb)
	mustExec(tb, admin, "CREATE DATABASE "+name)
	tb.Cleanup(func() { mustExec(tb, admin, "DROP DATABASE "+name) })
	dsn := mysqlDSN(tb, server, name)
	db := open(tb, "mysql", dsn)
	return pools{write: db, read: db, dsn: dsn}
}

// mysqlDSN returns the driver's form of a mysql:// URL.
func mysqlDSN(tb testing.TB, server, database string) string {
	tb.Helper()
	u, cfg := parsed(tb, server), mysqldriver.NewConfig()
	cfg.User, cfg.Net, cfg.Addr, cfg.DBName = u.User.Username(), "tcp", u.Host, database
	cfg.Passwd, _ = u.User.Password()
	return cfg.FormatDSN()
}

func freshSQLite(tb testing.TB) pools {
	tb.Helper()
	write, read := sqlstore.SQLiteDSN(filepath.Join(tb.TempDir(), "with space & 100%.db"))
	w := open(tb, "sqlite", write)
	w.SetMaxOpenConns(1)
	return pools{write: w, read: open(tb, "sqlite", read), dsn: write}
}

func open(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	db := dial(tb, driver, dsn)
	tb.Cleanup(func() { _ = db.Close() })
	return db
}

// dial opens a pool that the caller closes.
func dial(tb testing.TB, driver, dsn string) *sql.DB {
	tb.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		tb.Fatalf("sql.Open(%s) = %v", driver, err)
	}
	db.SetMaxOpenConns(16)
	db.SetMaxIdleConns(16) // the default of 2 makes a new connection for most calls
	return db
}

func mustExec(tb testing.TB, db *sql.DB, statement string, args ...any) {
	tb.Helper()
	if _, err := db.ExecContext(context.Background(), statement, args...); err != nil {
		tb.Fatalf("%s: %v", firstLine(statement), err)
	}
}

func firstLine(s string) string { line, _, _ := strings.Cut(s, "\n"); return line }

func quiet() sqlstore.Option { return sqlstore.WithLogger(slog.New(slog.DiscardHandler)) }

// migrated returns the pools of an empty database with the tables.
func (b backend) migrated(tb testing.TB, opts ...sqlstore.Option) pools {
	tb.Helper()
	p := b.fresh(tb)
	must(tb, sqlstore.Migrate(tb.Context(), p.write, b.dialect, opts...))
	return p
}

// store is a store of a test, with what it was made of.
type store struct {
	*sqlstore.Store
	backend
	pools
	prefix string // of its tables
}

// store returns a store on pools.
func (b backend) store(tb testing.TB, p pools, opts ...sqlstore.Option) *store {
	tb.Helper()
	s, err := sqlstore.New(tb.Context(), p.write, b.dialect, append([]sqlstore.Option{quiet(), sqlstore.WithReadPool(p.read)}, opts...)...)
	if err != nil {
		tb.Fatalf("New() = %v, want <nil>", err)
	}
	tb.Cleanup(func() { _ = s.Close() })
	_, prefix := sqlstore.TablesOf(opts...)
	return &store{s, b, p, prefix}
}

// sql writes a statement on the tables of the store. In the text {records} is the name of a table, and the rest is that of
// Dialect.Statement.
func (s *store) sql(text string) string { return s.backend.sql(s.prefix, text) }

var inBraces = regexp.MustCompile(`\{(schema|never|records|bindings|domains|decisions|notes|locks|lock_domain|readable)\}`)

func (b backend) sql(prefix, text string) string {
	return b.kind().Statement(inBraces.ReplaceAllStringFunc(text, func(name string) string {
		return b.kind().Table("", prefix+strings.Trim(name, "{}"))
	}))
}

// wait waits for a condition, and reports whether it came true.
func wait(t *testing.T, what string, ok func() bool) bool {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Errorf("never happened: %s", what)
			return false
		}
	}
	return true
}
