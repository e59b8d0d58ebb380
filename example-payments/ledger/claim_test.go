package ledger_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/internal/database"
)

func TestClaimedDatabaseIsRefusedToOthers(t *testing.T) {
	for name, database := range lastingDatabases {
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

// An embedded ledger leaves nothing behind, and removes what killed processes have left. It
// leaves the ledgers of living ones.
func TestEmbeddedLedgersAreRemoved(t *testing.T) {
	temp := t.TempDir()
	t.Setenv("TMPDIR", temp)
	folders := func() int {
		t.Helper()
		list, err := os.ReadDir(temp)
		if err != nil {
			t.Fatal(err)
		}
		return len(list)
	}
	living := open(t, "", ledger.Exclusive)
	leftover := filepath.Join(temp, "idemkeeper-payments-1")
	if err := os.Mkdir(leftover, 0o700); err != nil {
		t.Fatal(err)
	}
	list, err := filepath.Glob(filepath.Join(temp, "*"))
	if err != nil || len(list) != 2 {
		t.Fatalf("folders %v, %v, want 2", list, err)
	}
	for _, dir := range list {
		if err := os.Chtimes(dir, time.Time{}, time.Now().Add(-time.Hour)); err != nil {
			t.Fatal(err)
		}
	}
	other, err := ledger.Open(ctx(t), "", ledger.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(leftover); !os.IsNotExist(err) || folders() != 2 {
		t.Errorf("%d folders, %v, want those of the two ledgers", folders(), err)
	}
	if err := other.Close(); err != nil {
		t.Errorf("Close() = %v", err)
	}
	if n := folders(); n != 1 {
		t.Errorf("%d folders after Close, want that of the living ledger", n)
	}
	if _, err := pay(t, living, "op", fence("a", 1)); err != nil {
		t.Errorf("Pay in the living ledger = %v", err)
	}
}

// onEachServer runs a test on each kind of server. end ends the session with a lock for a
// purpose, as a lost machine would.
func onEachServer(t *testing.T, test func(t *testing.T, dsn string, end func(purpose string))) {
	t.Helper()
	for name, tt := range map[string]struct {
		fresh func(*testing.T) string
		find  string // the session with a lock; %s is the purpose
		end   string // ends it
	}{
		"postgres": {postgres, `SELECT l.pid FROM pg_locks l JOIN pg_stat_activity a USING (pid)
			WHERE l.locktype = 'advisory' AND a.application_name = current_setting('application_name') AND '%s' <> ''`, "SELECT pg_terminate_backend(%d)"},
		"mariadb": {mariadb, `SELECT is_used_lock(concat('idemkeeper ', left(sha2(concat('idemkeeper example-payments %s', char(0), database()), 256), 32)))`, "KILL %d"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			dsn := tt.fresh(t)
			test(t, dsn, func(purpose string) {
				t.Helper()
				db, err := database.Open(dsn, database.Options{Connections: 1})
				if err != nil {
					t.Fatal(err)
				}
				defer db.Close()
				var session int64
				if err := db.Write.QueryRow(fmt.Sprintf(tt.find, purpose)).Scan(&session); err != nil {
					t.Fatalf("the session with the lock: %v", err)
				}
				if _, err := db.Write.Exec(fmt.Sprintf(tt.end, session)); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

func TestLostClaimOfAServerIsReported(t *testing.T) {
	onEachServer(t, func(t *testing.T, dsn string, end func(string)) {
		l := open(t, dsn, ledger.Exclusive)
		end("ledger")
		select {
		case <-l.Lost():
		case <-time.After(10 * time.Second):
			t.Error("Lost() is open after the claim's session was ended")
		}
	})
}

// One of two instances leads. The other one leads after it, whether it steps down or is lost.
func TestLead(t *testing.T) {
	onEachServer(t, func(t *testing.T, dsn string, end func(string)) {
		one, two := open(t, dsn, ledger.Shared), open(t, dsn, ledger.Shared)
		leads := func(ctx context.Context, l *ledger.Ledger) (began <-chan struct{}, ended <-chan error) {
			b, e := make(chan struct{}), make(chan error, 1)
			go func() {
				e <- l.Lead(ctx, func(ctx context.Context) error {
					close(b)
					<-ctx.Done()
					return ctx.Err()
				})
			}()
			return b, e
		}
		soon := func(what string, c <-chan struct{}) {
			t.Helper()
			select {
			case <-c:
			case <-time.After(20 * time.Second):
				t.Fatalf("%s: not within 20 s", what)
			}
		}
		firstTerm, stepDown := context.WithCancel(ctx(t))
		began, ended := leads(firstTerm, one)
		soon("the first leads", began)
		secondBegan, secondEnded := leads(ctx(t), two)
		select {
		case <-secondBegan:
			t.Fatal("two lead at once")
		default:
		}
		stepDown()
		<-ended
		soon("the second leads", secondBegan)
		end("sweeper")
		if err := <-secondEnded; err == nil {
			t.Error("Lead() = nil after its session was ended")
		}
		waiting, giveUp := context.WithCancel(ctx(t))
		began, ended = leads(waiting, one)
		soon("the first leads again", began)
		giveUp()
		<-ended
	})
}
