package fence_test

import (
	"context"
	"database/sql"
	"fmt"
	"math/rand/v2"
	"net/url"
	"path/filepath"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testserver.M{M: m}) }

// ledger is an empty database with a table of fences and one of payments.
type ledger struct {
	dialect dialect.Dialect
	db      *sql.DB
	fences  *fence.Table
}

var levels = []sql.IsolationLevel{sql.LevelDefault, sql.LevelReadUncommitted, sql.LevelReadCommitted, sql.LevelRepeatableRead, sql.LevelSerializable}

// onEach runs a test on each database.
func onEach(t *testing.T, test func(t *testing.T, l *ledger)) {
	t.Helper()
	for name, fresh := range map[string]func(*testing.T) (dialect.Dialect, *sql.DB){
		"PostgreSQL": func(t *testing.T) (dialect.Dialect, *sql.DB) {
			return dialect.PostgreSQL, server(t, testserver.SharedPostgres(t))
		},
		"MariaDB": func(t *testing.T) (dialect.Dialect, *sql.DB) {
			return dialect.MySQL, server(t, testserver.SharedMariaDB(t)+"mysql")
		},
		"MySQL": func(t *testing.T) (dialect.Dialect, *sql.DB) {
			return dialect.MySQL, server(t, testserver.SharedMySQL(t)+"mysql")
		},
		"SQLite": sqlite,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, db := fresh(t)
			l := &ledger{dialect: d, db: db, fences: newTable(t, d)}
			must(t, l.fences.Migrate(t.Context(), db))
			l.exec(t, "CREATE TABLE payments (op VARCHAR(64) NOT NULL, token BIGINT NOT NULL)")
			test(t, l)
		})
	}
}

func newTable(t *testing.T, d dialect.Dialect, opts ...fence.Option) *fence.Table {
	t.Helper()
	table, err := fence.New(d, opts...)
	if err != nil {
		t.Fatalf("New(%v) = %v", d, err)
	}
	return table
}

// server makes a database on a server. admin is the URL of another one there.
func server(t *testing.T, admin string) *sql.DB {
	t.Helper()
	root := opened(t, admin)
	name := fmt.Sprintf("fence_test_%x", rand.Uint64())
	_, err := root.Exec("CREATE DATABASE " + name)
	must(t, err)
	t.Cleanup(func() {
		if _, err := root.Exec("DROP DATABASE " + name); err != nil {
			t.Error(err)
		}
	})
	u, err := url.Parse(admin)
	must(t, err)
	u.Path = "/" + name
	return opened(t, u.String())
}

// sqlite has several connections for writing, so that transactions meet.
func sqlite(t *testing.T) (dialect.Dialect, *sql.DB) {
	t.Helper()
	db := opened(t, "sqlite:"+filepath.Join(t.TempDir(), "ledger.db"))
	db.SetMaxOpenConns(8)
	return dialect.SQLite, db
}

func opened(t *testing.T, name string) *sql.DB {
	t.Helper()
	db, err := database.Open(name, database.Options{Create: true})
	must(t, err)
	t.Cleanup(func() { _ = db.Close() })
	return db.Write
}

func (l *ledger) exec(t *testing.T, statement string) {
	t.Helper()
	if _, err := l.db.ExecContext(t.Context(), statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// pay writes a payment in a transaction that raises the fence first.
func (l *ledger) pay(ctx context.Context, level sql.IsolationLevel, op string, f driver.Fence) error {
	return l.inTx(ctx, level, func(tx *sql.Tx) error {
		if err := l.fences.Raise(ctx, tx, op, f); err != nil {
			return err
		}
		return insertPayment(ctx, tx, op, f)
	})
}

func insertPayment(ctx context.Context, tx *sql.Tx, op string, f driver.Fence) error {
	_, err := tx.ExecContext(ctx, fmt.Sprintf("INSERT INTO payments (op, token) VALUES ('%s', %d)", op, f.Token))
	return err
}

func (l *ledger) inTx(ctx context.Context, level sql.IsolationLevel, do func(tx *sql.Tx) error) error {
	tx, err := l.db.BeginTx(ctx, l.options(level))
	if err != nil {
		return err
	}
	if err := do(tx); err != nil {
		_ = tx.Rollback()
		return err
	}
	return tx.Commit()
}

// options of a transaction. SQLite has one level.
func (l *ledger) options(level sql.IsolationLevel) *sql.TxOptions {
	if l.dialect == dialect.SQLite {
		return nil
	}
	return &sql.TxOptions{Isolation: level}
}

// tokens returns the fences that a query reads.
func (l *ledger) tokens(t *testing.T, query string) (tokens []uint64) {
	t.Helper()
	rows, err := l.db.QueryContext(t.Context(), query)
	must(t, err)
	defer rows.Close()
	for rows.Next() {
		var n uint64
		must(t, rows.Scan(&n))
		tokens = append(tokens, n)
	}
	must(t, rows.Err())
	return tokens
}

// paid returns the fences of an operation's payments.
func (l *ledger) paid(t *testing.T, op string) []uint64 {
	t.Helper()
	return l.tokens(t, "SELECT token FROM payments WHERE op = '"+op+"'")
}

// must ends a test whose preparation has failed.
func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func in(domain string, token uint64) driver.Fence { return driver.Fence{Domain: domain, Token: token} }

func patient(t *testing.T) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}
