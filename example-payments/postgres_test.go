package main

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
)

func TestPostgresWithoutSharedKeysServesOneInstance(t *testing.T) {
	t.Parallel()
	database := freshDatabases["postgres"](t)
	first := serve(t, "--database", database, "--token-store", "memory")
	if status, body, err := first.request("POST", "/v1/payments", "k", orderBody); status != 201 {
		t.Errorf("payment: %d %s %v, want 201", status, body, err)
	}
	refused(t, "--database", database, "--token-store", "memory").WaitLog(t, "claimed by another instance")

	// The first one loses its claim, and must not go on beside another.
	db := scratch.Open(t, database)
	var ended int
	if err := db.Write.QueryRow(`SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND a.datname = current_database()`).Scan(&ended); err != nil || ended != 1 {
		t.Fatalf("ended %d sessions, %v, want 1", ended, err)
	}
	if code := first.WaitExit(t).Code; code != 1 {
		t.Errorf("first instance without its claim: exit code %d, want 1", code)
	}
	first.WaitLog(t, "claim of the ledger was lost")
	serve(t, "--database", database, "--token-store", "memory").wantPayments(1)
}
