package sqlstore_test

import (
	"bytes"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Every call needs one connection at a time. A pool of one is enough for any number of callers, and a call that waits for
// it when its context ends is unavailable.
func TestPoolOfOne(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		p.write.SetMaxOpenConns(1)
		p.read = p.write
		s := b.store(t, p, sqlstore.WithExpiry(0))
		ctx, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		var wg sync.WaitGroup
		for i := range 16 {
			wg.Go(func() {
				for name, call := range calls(s, key(i)) {
					if err := call(ctx); err != nil && !errors.Is(err, driver.ErrStaleFence) {
						t.Errorf("%s() = %v", name, err)
					}
				}
			})
		}
		wg.Wait()
		conn, err := p.write.Conn(t.Context())
		must(t, err)
		defer conn.Close()
		for name, call := range calls(s, key(1)) {
			ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
			if err := call(ctx); !errors.Is(err, driver.ErrUnavailable) || !errors.Is(err, context.DeadlineExceeded) {
				t.Errorf("%s() without a connection = %v, want %v and %v", name, err, driver.ErrUnavailable, context.DeadlineExceeded)
			}
			cancel()
		}
	})
}

// SQLite refuses settings that could lose records.
func TestSettingsOfSQLite(t *testing.T) {
	t.Parallel()
	migrated := func(old, setting string) *sql.DB {
		dsn, _ := sqlstore.SQLiteDSN(filepath.Join(t.TempDir(), "x.db"))
		changed := strings.Replace(dsn, old, setting, 1)
		if changed == dsn {
			t.Fatalf("%s does not have %s", dsn, old)
		}
		db := open(t, "sqlite", changed)
		must(t, sqlstore.Migrate(t.Context(), db, dialect.SQLite))
		return db
	}
	for old, setting := range map[string]string{
		"synchronous%28FULL%29": "synchronous%28NORMAL%29", "foreign_keys%281%29": "foreign_keys%280%29", "journal_mode%28WAL%29": "journal_mode%28DELETE%29",
	} {
		db := migrated(old, setting)
		if _, err := sqlstore.New(t.Context(), db, dialect.SQLite, quiet()); !says(err, errSetting) || errors.Is(err, driver.ErrUnavailable) {
			t.Errorf("New() with %s = %v, want %v", setting, err, errSetting)
		}
		onSQLite.store(t, pools{write: db, read: db}, sqlstore.WithReadOnly())
	}
	memory := open(t, "sqlite", "file::memory:?_pragma=foreign_keys(1)&_pragma=synchronous(OFF)") // it is on no disk
	memory.SetMaxOpenConns(1)
	must(t, sqlstore.Migrate(t.Context(), memory, dialect.SQLite))
	onSQLite.store(t, pools{write: memory, read: memory}, sqlstore.WithExpiry(0))
}

// The driver gives a session to its next user as the last one has left it. What the store writes there would be
// rolled back when the connection ends, after its caller has run.
func TestSessionThatWouldNotCommitIsRefused(t *testing.T) {
	t.Parallel()
	for _, b := range backends()[1:3] {
		b.run(t, func(t *testing.T, b backend) {
			p := b.migrated(t)
			good := b.store(t, p, sqlstore.WithExpiry(0))
			a := mustBegin(t, good, key(1), request(5))
			left := open(t, "mysql", p.dsn)
			s := b.store(t, pools{write: left, read: p.read, dsn: p.dsn}, sqlstore.WithExpiry(0))
			j, err := s.Joined()
			must(t, err)
			left.SetMaxOpenConns(1)
			writes := map[string]func() error{
				"Begin":         func() error { _, err := s.Begin(t.Context(), key(2), request(1)); return err },
				"Issue":         func() error { _, err := s.Issue(t.Context(), key(3), time.Hour); return err },
				"Settle":        func() error { return callSettle(t.Context(), s, key(1), settlementOf(a, "")) },
				"RetireDomain":  func() error { return s.RetireDomain(t.Context(), "dead", driver.Decision{}) },
				"NoteFence":     func() error { return s.NoteFence(t.Context(), driver.Fence{Domain: "test", Token: 1}) },
				"DeclareSealed": func() error { return s.DeclareSealed(t.Context()) },
				"Bind":          func() error { _, err := j.Bind(t.Context(), key(4), driver.Fingerprint{}, time.Hour); return err },
			}
			ways := map[string]string{"SET autocommit = 0": "SET autocommit = 1"}
			if b.name == "MariaDB" { // MySQL does not tell of it
				ways["START TRANSACTION"] = "ROLLBACK"
			}
			for leave, mend := range ways {
				mustExec(t, left, leave)
				for name, write := range writes {
					if err := write(); !errors.Is(err, driver.ErrUnavailable) || !says(err, errLeftOpen) {
						t.Errorf("%s() after %s = %v, want %v", name, leave, err, errLeftOpen)
					}
				}
				ctx, cancel := context.WithTimeout(t.Context(), patience) // the session has locked nothing
				if err := callSettle(ctx, good, key(1), settlementOf(a, "")); err != nil {
					t.Errorf("Settle() in another session after %s = %v, want <nil>", leave, err)
				}
				cancel()
				mustExec(t, left, mend)
			}
			for name, write := range writes {
				if err := write(); err != nil {
					t.Errorf("%s() in a session that commits = %v, want <nil>", name, err)
				}
			}
		})
	}
}

// A server that acknowledges commits before they are on the disk is refused.
func TestSettingsOfPostgreSQL(t *testing.T) {
	t.Parallel()
	b := backends()[0]
	hasty := b.migrated(t).with(t, "synchronous_commit=off")
	if _, err := sqlstore.New(t.Context(), hasty, dialect.PostgreSQL, quiet()); !says(err, errSetting) || errors.Is(err, driver.ErrUnavailable) {
		t.Errorf("New() with synchronous_commit off = %v, want %v", err, errSetting)
	}
	b.store(t, pools{write: hasty, read: hasty}, sqlstore.WithReadOnly())
}

// The store works at the isolation that a connection prefers.
func TestIsolationOfTheConnection(t *testing.T) {
	t.Parallel()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		const ofMySQL = "_isolation=%27SERIALIZABLE%27&clientFoundRows=true&interpolateParams=true&parseTime=true"
		db := p.with(t, map[string]string{
			"PostgreSQL": "default_transaction_isolation=serializable", "MariaDB": "tx" + ofMySQL, "MySQL": "transaction" + ofMySQL,
		}[b.name])
		s := b.store(t, pools{write: db, read: db, dsn: ""})
		var wg sync.WaitGroup
		var begun sync.Map
		for i := range 200 {
			wg.Go(func() {
				res, err := s.Begin(t.Context(), key(i%10), request(uint64(i)+1))
				if err != nil && !errors.Is(err, driver.ErrStaleFence) {
					t.Errorf("Begin() = %v", err)
				}
				if res.Begun {
					if _, twice := begun.LoadOrStore(i%10, true); twice {
						t.Errorf("Begin() began key %d twice", i%10)
					}
				}
			})
		}
		wg.Wait()
	})
}

// An operator should know that the server acknowledges commits before they are on the disk.
func TestMySQLThatForgetsCommitsIsTold(t *testing.T) {
	t.Parallel()
	server := testserver.StartMariaDB(t, "--log-bin", "--sync-binlog=1")
	b := onMySQL("MariaDB", server.URL())
	p := b.migrated(t)
	for _, c := range []struct {
		setting string
		value   int
		told    bool
	}{
		{"innodb_flush_log_at_trx_commit", 2, true},
		{"innodb_flush_log_at_trx_commit", 1, false},
		{"sync_binlog", 0, true},
		{"sync_binlog", 1, false},
	} {
		mustExec(t, p.write, fmt.Sprintf("SET GLOBAL %s = %d", c.setting, c.value))
		var log bytes.Buffer
		b.store(t, p, sqlstore.WithExpiry(0), sqlstore.WithLogger(slog.New(slog.NewTextHandler(&log, nil))))
		if got := strings.Contains(log.String(), c.setting+" is not 1"); got != c.told {
			t.Errorf("New() with %s = %d warns %t, want %t: %s", c.setting, c.value, got, c.told, log.String())
		}
	}
}
