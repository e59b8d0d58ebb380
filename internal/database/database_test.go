package database_test

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

const password = "p@ss/w:rd?%41"

func TestOpenRefuses(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		"", "x", "sqlite:", "oracle://idem:" + password + "@h/x", "mysql://idem:" + password + "@/x", "mysql://h:3306", "mysql://h/",
		"mysql://h/x/y", "mysql://h:0/x", "mysql://h:99999/x", "mysql://a,b/x", "mysql://a:1,b:2/x", "mysql://::1:3306/x", "mysql://h:/x",
		"postgres://h:99999/x", "postgres://h:0/x", "postgres://::1:5432/x", "mysql://idem:" + password + "@h:port/x", "mysql://h/x?timeout=soon", "postgres://idem:" + password + "@h:port/x",
		"postgres://idem:" + password + "@h/x", "mysql://idem:123/p@ss@h/x", "postgres://idem:p?p@ss@h/x",
		"postgres://h/x?sslmode=perhaps", "sqlite:" + filepath.Join(t.TempDir(), "missing.db"),
	} {
		db, err := database.Open(name, database.Options{})
		if err == nil {
			t.Errorf("Open(%s) = %s, want an error", name, db.Name)
			continue
		}
		if strings.Contains(err.Error(), password) || strings.Contains(err.Error(), "p@ss") {
			t.Errorf("Open(%s) = %v, which tells the password", name, err)
		}
	}
}

func TestOpen(t *testing.T) {
	t.Parallel()
	for _, name := range []string{
		testserver.SharedPostgres(t), testserver.SharedMariaDB(t) + "mysql", "sqlite:" + filepath.Join(t.TempDir(), "a b%20c.db"),
	} {
		db, err := database.Open(name, database.Options{Create: true})
		if err != nil {
			t.Fatalf("Open(%s) = %v", name, err)
		}
		if err := db.Write.PingContext(t.Context()); err != nil {
			t.Errorf("Open(%s): %v", name, err)
		}
		if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect, sqlstore.WithTablePrefix("opened_")); err != nil {
			t.Errorf("Migrate(%s) = %v", db.Name, err)
		}
		if err := db.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
		if err := db.Read.PingContext(t.Context()); err == nil {
			t.Error("the pool for reading is open after Close")
		}
	}
}

func TestIdleTransaction(t *testing.T) {
	t.Parallel()
	for name, query := range map[string]string{
		testserver.SharedPostgres(t):          "SELECT setting::bigint / 1000 FROM pg_settings WHERE name = 'idle_in_transaction_session_timeout'",
		testserver.SharedMariaDB(t) + "mysql": "SELECT @@session.wait_timeout",
	} {
		db, err := database.Open(name, database.Options{IdleTransaction: 7 * time.Second})
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		var seconds int
		if err := db.Write.QueryRow(query).Scan(&seconds); err != nil || seconds != 7 {
			t.Errorf("%s ends idle transactions after %d s, %v, want 7", db.Name, seconds, err)
		}
	}
}

// The names in messages have no password.
func TestNames(t *testing.T) {
	t.Parallel()
	for name, want := range map[string]string{
		"postgres://idem:secret@db.example/pay?sslmode=require": "postgres://db.example:5432/pay",
		"mysql://idem:secret@db.example/pay?tls=skip-verify":    "mysql://db.example:3306/pay",
		"mysql://idem:se%40cret@[::1]:3307/pay":                 "mysql://[::1]:3307/pay",
	} {
		db, err := database.Open(name, database.Options{})
		if err != nil || db.Name != want {
			t.Errorf("Open(%s) = %+v, %v, want %s", name, db, err, want)
		}
	}
}
