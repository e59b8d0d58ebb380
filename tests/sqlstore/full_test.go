package sqlstore_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// A database without space refuses to settle with a long response, and says that it takes no writes. What it has
// can be read.
func TestFullDatabaseTakesNoWrites(t *testing.T) {
	t.Parallel()
	full := func(t *testing.T, b backend, fill func(p pools)) {
		t.Helper()
		p := b.migrated(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		kept, _ := begin(t, s, "kept")
		fill(p)
		var err error
		for n := 0; err == nil && n < 100; n++ {
			var res driver.BeginResult
			if res, err = s.Begin(t.Context(), key(n), request(1)); err == nil {
				a := res.Record.Attempt
				_, err = s.Settle(t.Context(), key(n), driver.Settlement{ID: a.Nonce, Attempt: a, State: driver.StateCompleted, ResultTTL: time.Hour, KeyTTL: time.Hour,
					Response: &driver.Response{Status: 201, Body: make([]byte, 1<<20)}})
			}
		}
		if !errors.Is(err, driver.ErrNoWrites) || !errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("the first error = %v, want %v", err, driver.ErrNoWrites)
		}
		if rec, err := s.Get(t.Context(), kept); err != nil || rec.State != driver.StatePending {
			t.Errorf("Get() = %v, %v, want it as it was", rec.State, err)
		}
	}
	t.Run("PostgreSQL", func(t *testing.T) {
		t.Parallel()
		if !testserver.CanFillDisks() {
			t.Log("this user mounts no disks")
			return
		}
		server := testserver.StartPostgresOn(t, testserver.NewMachine(t))
		full(t, onPostgres("PostgreSQL", server.URL()), func(p pools) {
			// The server ends if it finds no space for its log, so the next file of that begins now.
			mustExec(t, p.write, "SELECT pg_switch_wal()")
			mustExec(t, p.write, "CREATE TABLE in_the_next_file ()")
			server.FillDisk()
		})
	})
	t.Run("MariaDB", func(t *testing.T) { // a file that may not grow stands for the disk
		t.Parallel()
		server := testserver.StartMariaDB(t, "--innodb-flush-method=nosync", "--innodb-file-per-table=OFF", "--innodb-data-file-path=ibdata1:12M")
		full(t, onMySQL("MariaDB", server.URL()), func(pools) {})
	})
	t.Run("SQLite", func(t *testing.T) {
		t.Parallel()
		full(t, onSQLite, func(p pools) {
			mustExec(t, p.write, fmt.Sprint("PRAGMA max_page_count = ", get[int](t, p.write, "PRAGMA page_count")+100))
		})
	})
}
