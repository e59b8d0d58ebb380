package ledger_test

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

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testserver.M{M: m}) }

const merchant = "m"

// onEachDatabase runs a test against every kind of database.
func onEachDatabase(t *testing.T, test func(t *testing.T, database string)) {
	t.Run("embedded", func(t *testing.T) { t.Parallel(); test(t, "") })
	t.Run("file", func(t *testing.T) { t.Parallel(); test(t, sqliteFile(t)) })
	t.Run("postgres", func(t *testing.T) { t.Parallel(); test(t, postgres(t)) })
	t.Run("mariadb", func(t *testing.T) { t.Parallel(); test(t, mariadb(t)) })
}

func sqliteFile(t *testing.T) string {
	return "sqlite:" + filepath.Join(t.TempDir(), "ledger with space.db")
}

func postgres(t *testing.T) string {
	t.Helper()
	base := testserver.SharedPostgres(t)
	db, err := sql.Open("pgx", base)
	if err != nil {
		t.Fatal(err)
	}
	schema := fmt.Sprintf("ledger_test_%x", rand.Uint64())
	if _, err := db.Exec("CREATE SCHEMA " + schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.Exec("DROP SCHEMA " + schema + " CASCADE"); err != nil {
			t.Error(err)
		}
		db.Close()
	})
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	q := u.Query()
	q.Set("search_path", schema)
	q.Set("application_name", schema)
	u.RawQuery = q.Encode()
	return u.String()
}

// lastingDatabases are those that survive a Close.
var lastingDatabases = map[string]func(*testing.T) string{"file": sqliteFile, "postgres": postgres, "mariadb": mariadb}

func mariadb(t *testing.T) string {
	t.Helper()
	base := testserver.SharedMariaDB(t)
	admin, err := database.Open(base+"mysql", database.Options{})
	if err != nil {
		t.Fatal(err)
	}
	name := fmt.Sprintf("ledger_test_%x", rand.Uint64())
	if _, err := admin.Write.Exec("CREATE DATABASE " + name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.Write.Exec("DROP DATABASE " + name); err != nil {
			t.Error(err)
		}
		admin.Close()
	})
	return base + name
}

func open(t *testing.T, name string, s ledger.Sharing) *ledger.Ledger {
	t.Helper()
	l, err := ledger.Open(ctx(t), name, s)
	if err != nil {
		t.Fatalf("Open(%q) = %v", name, err)
	}
	t.Cleanup(func() {
		if err := l.Close(); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	if err := l.AddMerchant(ctx(t), merchant); err != nil {
		t.Fatal(err)
	}
	return l
}

func ctx(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), 30*time.Second)
	t.Cleanup(cancel)
	return ctx
}

// pay makes a payment of 100 from alice to bob under a fence.
func pay(t *testing.T, l *ledger.Ledger, op string, f driver.Fence) (payments.Payment, error) {
	t.Helper()
	p := payments.NewPayment(op, payments.Order{From: "alice", To: "bob", Amount: 100, Currency: "USD", Note: op}, time.Now())
	return p, l.Pay(ctx(t), merchant, p, f)
}

// settle looks for a payment as a resolver does.
func settle(t *testing.T, l *ledger.Ledger, op string, f, doubt driver.Fence) (*payments.Payment, error) {
	t.Helper()
	return l.Settle(ctx(t), idem.Interrupted{OperationID: op, Fence: f, Attempt: driver.Attempt{Fence: doubt}})
}

func fence(domain string, token uint64) driver.Fence {
	return driver.Fence{Domain: domain, Token: token}
}

func paymentCount(t *testing.T, l *ledger.Ledger) int {
	t.Helper()
	list, err := l.Payments(ctx(t), merchant, payments.Query{Limit: 10_000})
	if err != nil {
		t.Fatal(err)
	}
	return len(list)
}

func wantBalancedBooks(t *testing.T, l *ledger.Ledger) {
	t.Helper()
	if err := l.Audit(ctx(t)); err != nil {
		t.Errorf("Audit() = %v", err)
	}
}
