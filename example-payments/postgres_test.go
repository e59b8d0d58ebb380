package main

import (
	"database/sql"
	"fmt"
	"net/url"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// postgres gives a schema of the test's own.
func postgres(t *testing.T) (*sql.DB, string) {
	t.Helper()
	base := testserver.SharedPostgres(t)
	u, err := url.Parse(base)
	if err != nil {
		t.Fatal(err)
	}
	db, err := sql.Open("pgx", base)
	if err != nil {
		t.Fatal(err)
	}
	schema := "payments_test_" + driver.NewNonce().String()
	if _, err := db.ExecContext(t.Context(), "CREATE SCHEMA "+schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.Exec("DROP SCHEMA " + schema + " CASCADE"); err != nil {
			t.Error(err)
		}
		db.Close()
	})
	q := u.Query()
	q.Set("search_path", schema)
	q.Set("application_name", schema)
	u.RawQuery = q.Encode()
	return db, u.String()
}

func TestPostgresWithoutSharedKeysServesOneInstance(t *testing.T) {
	t.Parallel()
	db, database := postgres(t)
	first := serve(t, "--database", database, "--token-store", "memory")
	if status, body, err := first.request("POST", "/v1/payments", "k", orderBody); status != 201 {
		t.Errorf("payment: %d %s %v, want 201", status, body, err)
	}
	second := launch(t, "--database", database, "--token-store", "memory")
	if code := second.exit(15 * time.Second); code != 1 {
		t.Errorf("second instance: exit code %d, want 1", code)
	}
	second.await(&second.stderr, "claimed by another instance")

	// The first one loses its claim, and must not go on beside another.
	u, err := url.Parse(database)
	if err != nil {
		t.Fatal(err)
	}
	end := fmt.Sprintf(`SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND a.application_name = '%s'`, u.Query().Get("application_name"))
	var ended int
	if err := db.QueryRowContext(t.Context(), end).Scan(&ended); err != nil || ended != 1 {
		t.Fatalf("ended %d sessions, %v, want 1", ended, err)
	}
	if code := first.exit(15 * time.Second); code != 1 {
		t.Errorf("first instance without its claim: exit code %d, want 1", code)
	}
	first.await(&first.stderr, "claim of the ledger was lost")
	serve(t, "--database", database, "--token-store", "memory").wantPayments(1)
}
