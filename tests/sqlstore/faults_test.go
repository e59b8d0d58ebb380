package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// calls are all methods that ask the database, each with arguments that write something.
func calls(s *store, id driver.KeyID) map[string]func(ctx context.Context) error {
	a := driver.Attempt{Number: 1, Fence: driver.Fence{Domain: "test", Token: 1}, Nonce: driver.Nonce{1}}
	st := settlementOf(a, "alice")
	st.Repair = &driver.Repair{Kind: driver.ClientKey, Started: time.Now()}
	return map[string]func(ctx context.Context) error{
		"Get":   func(ctx context.Context) error { _, err := s.Get(ctx, id); return err },
		"Issue": func(ctx context.Context) error { _, err := s.Issue(ctx, id, time.Hour); return err },
		"Begin": func(ctx context.Context) error { _, err := s.Begin(ctx, id, request(9)); return err },
		"Begin with a token": func(ctx context.Context) error {
			req := request(9)
			req.Kind = driver.IssuedToken
			_, err := s.Begin(ctx, id, req)
			return err
		},
		"Settle":        func(ctx context.Context) error { _, err := s.Settle(ctx, id, st); return err },
		"Abort":         func(ctx context.Context) error { return s.Abort(ctx, id, request(9)) },
		"ListOpen":      func(ctx context.Context) error { _, err := s.ListOpen(ctx, driver.OpenQuery{}); return err },
		"RetireDomain":  func(ctx context.Context) error { return s.RetireDomain(ctx, "dead", driver.Decision{By: "alice"}) },
		"DomainRetired": func(ctx context.Context) error { _, err := s.DomainRetired(ctx, "dead"); return err },
		"NoteFence":     func(ctx context.Context) error { return s.NoteFence(ctx, driver.Fence{Domain: "test", Token: 7}) },
		"HighestFence":  func(ctx context.Context) error { _, err := s.HighestFence(ctx, "test"); return err },
		"DeclareSealed": s.DeclareSealed,
		"Sealed":        func(ctx context.Context) error { _, err := s.Sealed(ctx); return err },
		"Decisions":     func(ctx context.Context) error { _, err := s.Decisions(ctx, id); return err },
		"Clock":         func(ctx context.Context) error { _, err := s.Clock(ctx); return err },
		"Expire":        func(ctx context.Context) error { _, err := s.Expire(ctx, 10); return err },
		"EachKey":       func(ctx context.Context) error { return s.EachKey(ctx, func(driver.KeyID) bool { return true }) },
		"Ping":          s.Ping,
	}
}

// reads are the calls that write nothing.
var reads = map[string]bool{"Get": true, "ListOpen": true, "DomainRetired": true, "HighestFence": true, "Sealed": true, "Decisions": true, "Clock": true, "EachKey": true}

func TestMissingTables(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		mustExec(t, p.write, "DROP VIEW idem_readable")
		mustExec(t, p.write, "DROP TABLE idem_records")
		for _, table := range []string{"schema", "bindings", "domains", "decisions", "notes"} {
			mustExec(t, p.write, "DROP TABLE idem_"+table)
		}
		for name, call := range calls(s, key(1)) {
			if name == "Clock" {
				continue
			}
			err := call(t.Context())
			if !errors.Is(err, sqlstore.ErrNotMigrated) || !errors.Is(err, driver.ErrUnavailable) && name != "Ping" {
				t.Errorf("%s() without tables = %v, want %v", name, err, sqlstore.ErrNotMigrated)
			}
		}
	})
}

func TestSchemaOfAnotherVersion(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		for version, want := range map[int]error{sqlstore.SchemaVersion + 1: sqlstore.ErrNewerSchema, 0: sqlstore.ErrNotMigrated} {
			mustExec(t, p.write, s.sql("DELETE FROM {schema}"))
			mustExec(t, p.write, s.sql("INSERT INTO {schema} (version, applied) VALUES (?, 0)"), version)
			ping := want
			if version > sqlstore.SchemaVersion {
				ping = nil // a newer build migrates while instances of this one serve
			}
			if err := s.Ping(t.Context()); !errors.Is(err, ping) {
				t.Errorf("Ping() with version %d = %v, want %v", version, err, ping)
			}
			if _, err := sqlstore.New(t.Context(), p.write, b.dialect, sqlstore.WithReadPool(p.read)); !errors.Is(err, want) {
				t.Errorf("New() with version %d = %v, want %v", version, err, want)
			}
		}
	})
}

// A database that accepts no writes refuses them with a clear error, and is read.
func TestReadOnlyDatabase(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		good := b.store(t, p, sqlstore.WithExpiry(0))
		id := key(1)
		must(t, errOf(good.Issue(t.Context(), id, time.Hour)))
		s := b.store(t, b.readOnly(t, p), sqlstore.WithExpiry(0))
		for name, call := range calls(s, key(2)) {
			if name == "Begin with a token" || name == "Expire" { // they find nothing to write
				continue
			}
			err := call(t.Context())
			switch {
			case reads[name] && err != nil:
				t.Errorf("%s() = %v, want <nil>", name, err)
			case !reads[name] && (!says(err, errReadOnlyDatabase) || !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, driver.ErrNoWrites)):
				t.Errorf("%s() = %v, want %v", name, err, errReadOnlyDatabase)
			}
		}
		req := request(1)
		req.Kind = driver.IssuedToken
		if _, err := s.Begin(t.Context(), id, req); !says(err, errReadOnlyDatabase) {
			t.Errorf("Begin() with the token = %v, want %v", err, errReadOnlyDatabase)
		}
		if rec, err := good.Get(t.Context(), id); err != nil || rec.State != driver.StateIssued {
			t.Errorf("Get() = %v, %v, want the token as it was", rec.State, err)
		}
	})
}

// readOnly returns pools of the same database whose connections may not write.
func (b backend) readOnly(tb testing.TB, p pools) pools {
	tb.Helper()
	db := p.with(tb, map[string]string{
		"PostgreSQL": "default_transaction_read_only=on", "MariaDB": "tx_read_only=1", "MySQL": "transaction_read_only=1", "SQLite": "mode=ro",
	}[b.name])
	return pools{write: db, read: db, dsn: p.dsn}
}

// The server is killed and comes back. Calls fail clearly meanwhile, and every record is
// there afterwards.
func TestRestartedServer(t *testing.T) {
	t.Parallel()
	onOwnServers(t, func(t *testing.T, server ownServer, b backend) {
		t.Parallel()
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		pending, a := begin(t, s, "pending")
		completed, c := begin(t, s, "completed")
		settle(t, s, completed, driver.Settlement{Attempt: c, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour})
		server.Kill()
		for name, call := range calls(s, key(1)) {
			if err := call(t.Context()); !errors.Is(err, driver.ErrUnavailable) {
				t.Errorf("%s() without a server = %v, want %v", name, err, driver.ErrUnavailable)
			}
		}
		server.Restart()
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("Ping() after the restart = %v, want <nil>", err)
		}
		if rec, err := s.Get(t.Context(), pending); err != nil || rec.State != driver.StatePending || rec.Attempt != a {
			t.Errorf("Get(pending) = %v, %v, want it as it was", rec.State, err)
		}
		if rec, err := s.Get(t.Context(), completed); err != nil || rec.State != driver.StateCompleted || string(rec.Response.Body) != "paid" {
			t.Errorf("Get(completed) = %v, %v, want it as it was", rec.State, err)
		}
		settle(t, s, pending, driver.Settlement{Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour})
	})
}

const password = "correct-horse-7"

// Whatever goes wrong with a connection, its error does not tell the password.
func TestErrorsTellNoPassword(t *testing.T) {
	t.Parallel()
	dead, _ := url.Parse("postgres://idemkeeper:" + password + "@127.0.0.1:1/postgres?sslmode=disable")
	withPassword, err := url.Parse(testserver.SharedPostgres(t))
	must(t, err)
	withPassword.User, withPassword.Path = url.UserPassword("idemkeeper", password), "/no_such_database"
	cfg := mysqldriver.NewConfig()
	cfg.User, cfg.Passwd, cfg.Net, cfg.Addr = "idemkeeper", password, "tcp", "127.0.0.1:1"
	deadMySQL := cfg.FormatDSN()
	maria, err := url.Parse(testserver.SharedMariaDB(t))
	must(t, err)
	cfg.Addr = maria.Host
	for _, tt := range []struct {
		driver, dsn string
		dialect     dialect.Dialect
	}{
		{"pgx", dead.String(), dialect.PostgreSQL},
		{"pgx", withPassword.String(), dialect.PostgreSQL},
		{"pgx", "postgres://idemkeeper:" + password + "@127.0.0.1:port/x", dialect.PostgreSQL},
		{"mysql", deadMySQL, dialect.MySQL},
		{"mysql", cfg.FormatDSN(), dialect.MySQL}, // the server has no such password
	} {
		db, err := sql.Open(tt.driver, tt.dsn)
		if err != nil {
			if strings.Contains(err.Error(), password) {
				t.Errorf("sql.Open() = %v", err)
			}
			continue
		}
		_, err = sqlstore.New(t.Context(), db, tt.dialect, quiet())
		migrateErr := sqlstore.Migrate(t.Context(), db, tt.dialect)
		for _, err := range []error{err, migrateErr} {
			if !errors.Is(err, driver.ErrUnavailable) || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), password) {
				t.Errorf("New() or Migrate() = %v, want %v without the password", err, driver.ErrUnavailable)
			}
		}
		_ = db.Close()
	}
}

// A response that the server would refuse is no reason to try again. The engine settles
// without it.
func TestLongResponse(t *testing.T) {
	t.Parallel()
	b := backends()[1]
	s := b.store(t, b.migrated(t))
	id, a := begin(t, s, "long")
	st := settlementOf(a, "")
	st.Response = &driver.Response{Status: 200, Body: make([]byte, 17<<20)} // MariaDB takes 16 MiB
	if _, err := s.Settle(t.Context(), id, st); !errors.Is(err, driver.ErrResponseInvalid) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("Settle() with 17 MiB = %v, want %v", err, driver.ErrResponseInvalid)
	}
	st.Response.Body = make([]byte, 15<<20)
	if err := callSettle(t.Context(), s, id, st); err != nil {
		t.Errorf("Settle() with 15 MiB = %v, want <nil>", err)
	}
}

// The pool for reading is lost, and the one for writing is not. A record that cannot be read is not missing.
func TestRecordThatCannotBeReadIsNotMissing(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	must(t, p.read.Close())
	for _, name := range []string{"Get", "Issue", "Begin with a token", "Settle", "Abort"} {
		if err := calls(s, key(1))[name](t.Context()); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("%s() of a record that cannot be read = %v, want %v", name, err, driver.ErrUnavailable)
		}
	}
	if n := get[int](t, p.write, "SELECT count(*) FROM idem_records"); n != 0 {
		t.Errorf("%d records were made, want 0", n)
	}
}

// A lock of the database that stays taken is an outage, and the error says which one.
func TestLockOfAnotherTransaction(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	id, a := begin(t, s, "locked")
	mustExec(t, p.write, "PRAGMA busy_timeout = 1")
	other := open(t, "sqlite", p.dsn)
	other.SetMaxOpenConns(1)
	mustExec(t, other, "BEGIN IMMEDIATE")
	_, err := s.Settle(t.Context(), id, settlementOf(a, ""))
	if !errors.Is(err, driver.ErrUnavailable) || !strings.Contains(err.Error(), "another transaction holds the lock") {
		t.Errorf("Settle() under the lock of another transaction = %v, want %v", err, driver.ErrUnavailable)
	}
	mustExec(t, other, "ROLLBACK")
	if err := callSettle(t.Context(), s, id, settlementOf(a, "")); err != nil {
		t.Errorf("Settle() after it = %v, want <nil>", err)
	}
}

// A write that never takes effect ends as an outage. It is not reported as done.
func TestRecordThatKeepsChanging(t *testing.T) {
	t.Parallel()
	b := onSQLite
	p := b.migrated(t)
	s := b.store(t, p, sqlstore.WithExpiry(0))
	id, a := begin(t, s, "changing")
	mustExec(t, p.write, "CREATE TRIGGER other BEFORE UPDATE ON idem_records BEGIN SELECT RAISE(IGNORE); END")
	for _, by := range []string{"", "alice"} {
		if res, err := s.Settle(t.Context(), id, settlementOf(a, by)); !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("Settle() by %q = settled %t, %v, want %v", by, res.Settled, err, driver.ErrUnavailable)
		}
	}
	if rec, err := s.Get(t.Context(), id); err != nil || rec.State != driver.StatePending {
		t.Errorf("Get() = %v, %v, want pending", rec.State, err)
	}
	if list, err := s.Decisions(t.Context(), id); err != nil || len(list) != 0 {
		t.Errorf("Decisions() = %v, %v, want none", list, err)
	}
}

// The connection is lost at each message of Migrate and New in turn. The error says so, and another
// call finishes the tables. A call without an error has done everything. The many comments of PostgreSQL
// are alike and all in one transaction, so only the first one of several in a row is lost.
func TestConnectionLostAtEachStatementOfMigrateAndNew(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		near := b.fresh(t)
		far, proxy := behindProxy(t, near)
		lost := 0
		for name, open := range map[string]func(prefix string) error{
			"Migrate": func(prefix string) error {
				err := sqlstore.Migrate(t.Context(), far.write, b.dialect, sqlstore.WithTablePrefix(prefix))
				if err == nil {
					if s, left := sqlstore.New(t.Context(), near.write, b.dialect, quiet(), sqlstore.WithExpiry(0), sqlstore.WithTablePrefix(prefix)); left != nil {
						t.Errorf("after Migrate() = <nil>: %v", left)
					} else {
						_ = s.Close()
					}
				}
				return err
			},
			"New": func(prefix string) error {
				if err := sqlstore.Migrate(t.Context(), far.write, b.dialect, sqlstore.WithTablePrefix("new_")); err != nil {
					return err
				}
				s, err := sqlstore.New(t.Context(), far.write, b.dialect, quiet(), sqlstore.WithExpiry(0), sqlstore.WithTablePrefix("new_"))
				if err == nil {
					proxy.Restore()
					of := &store{s, b, far, "new_"}
					id, a := begin(t, of, driver.NewNonce().String())
					settle(t, of, id, driver.Settlement{Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour})
					err = s.Close()
				} else if !errors.Is(err, driver.ErrUnavailable) {
					t.Errorf("New() = %v, want %v", err, driver.ErrUnavailable)
				}
				return err
			},
		} {
			if err := open("first_"); err != nil { // makes a connection, and what it has prepared
				t.Fatal(err)
			}
			for n := 1; ; n++ {
				var seen atomic.Int64
				var comment atomic.Bool // the message before was one
				proxy.DropNextRequest(func(r testserver.Request) bool {
					again := testserver.Contains("COMMENT ON ")(r)
					return (!comment.Swap(again) || !again) && seen.Add(1) == int64(n)
				})
				prefix := fmt.Sprintf("p%d_", n)
				err := open(prefix)
				proxy.Restore()
				if seen.Load() < int64(n) { // it has fewer messages
					if err != nil {
						t.Errorf("%s() = %v, want <nil>", name, err)
					}
					break
				}
				if err != nil {
					lost++
				}
				if err := open(prefix); err != nil {
					t.Errorf("%s() after message %d was lost = %v, want <nil>", name, n, err)
				}
			}
		}
		if lost == 0 {
			t.Error("no call noticed a lost connection")
		}
	})
}
