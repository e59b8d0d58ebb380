package ledger_test

import (
	"database/sql"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
)

func TestClaimedDatabaseIsRefusedToOthers(t *testing.T) {
	for name, database := range map[string]func(*testing.T) string{"file": sqliteFile, "postgres": postgres} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := database(t)
			first, err := ledger.Open(ctx(t), dsn, ledger.Exclusive)
			if err != nil {
				t.Fatal(err)
			}
			for _, s := range []ledger.Sharing{ledger.Exclusive, ledger.Shared} {
				if l, err := ledger.Open(ctx(t), dsn, s); !errors.Is(err, ledger.ErrClaimed) {
					t.Errorf("second Open(%v) = %v, %v, want ErrClaimed", s, l, err)
				}
			}
			if err := first.Close(); err != nil {
				t.Fatal(err)
			}
			open(t, dsn, ledger.Exclusive)
		})
	}
}

func TestSharedDatabaseIsOpenToSharersOnly(t *testing.T) {
	dsn := sqliteFile(t)
	one, two := open(t, dsn, ledger.Shared), open(t, dsn, ledger.Shared)
	if l, err := ledger.Open(ctx(t), dsn, ledger.Exclusive); !errors.Is(err, ledger.ErrClaimed) {
		t.Errorf("exclusive Open = %v, %v, want ErrClaimed", l, err)
	}
	for i, l := range []*ledger.Ledger{one, two} {
		if _, err := pay(t, l, "op", fence("a", uint64(i+1))); err != nil {
			t.Errorf("Pay = %v", err)
		}
	}
	if _, err := pay(t, one, "op", fence("a", 1)); err == nil {
		t.Error("Pay under a fence that the other instance has raised = nil, want ErrFenced")
	}
	if n := paymentCount(t, two); n != 2 {
		t.Errorf("%d payments, want 2", n)
	}
}

func TestClaimIsOfTheFileWhateverItsName(t *testing.T) {
	dsn := sqliteFile(t)
	open(t, dsn, ledger.Exclusive)
	link := filepath.Join(t.TempDir(), "link.db")
	if err := os.Symlink(strings.TrimPrefix(dsn, "sqlite:"), link); err != nil {
		t.Fatal(err)
	}
	if l, err := ledger.Open(ctx(t), "sqlite:"+link, ledger.Exclusive); !errors.Is(err, ledger.ErrClaimed) {
		t.Errorf("Open by a link = %v, %v, want ErrClaimed", l, err)
	}
}

func TestLostPostgresClaimIsReported(t *testing.T) {
	dsn := postgres(t)
	l := open(t, dsn, ledger.Exclusive)
	db, err := sql.Open("pgx", dsn)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	var killed int
	err = db.QueryRow(`SELECT count(pg_terminate_backend(l.pid)) FROM pg_locks l JOIN pg_stat_activity a USING (pid)
		WHERE l.locktype = 'advisory' AND a.application_name = current_setting('application_name')`).Scan(&killed)
	if err != nil || killed != 1 {
		t.Fatalf("terminated %d sessions, %v, want 1", killed, err)
	}
	select {
	case <-l.Lost():
	case <-time.After(10 * time.Second):
		t.Error("Lost() is open after the claim's session was terminated")
	}
}
