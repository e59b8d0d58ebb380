package main

import (
	"database/sql"
	"encoding/json"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/cli"
	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/record"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// onEachDatabase runs a test on the URL of an empty database of each kind.
func onEachDatabase(t *testing.T, f func(t *testing.T, url string)) {
	t.Helper()
	for name, fresh := range map[string]func(*testing.T) string{
		"PostgreSQL": func(t *testing.T) string { t.Helper(); return scratch.Empty(t, testserver.SharedPostgres(t)) },
		"MariaDB":    func(t *testing.T) string { t.Helper(); return scratch.Empty(t, testserver.SharedMariaDB(t)) },
		"SQLite":     func(t *testing.T) string { t.Helper(); return "sqlite:" + filepath.Join(t.TempDir(), "x.db") },
	} {
		t.Run(name, func(t *testing.T) { t.Parallel(); f(t, fresh(t)) })
	}
}

func execSQL(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.Exec(statement); err != nil {
		t.Fatalf("%s: %v", statement, err)
	}
}

// migratedStore migrates by idemctl, and opens the store as a service does.
func migratedStore(t *testing.T, name string) *sqlstore.Store {
	t.Helper()
	env := map[string]string{"IDEMCTL_DATABASE": name}
	for range 2 {
		if got := idemctl(t, env, "store", "migrate"); got.code != 0 || !strings.Contains(got.stdout, "have version 1") {
			t.Fatalf("store migrate = %+v, want version 1", got)
		}
	}
	db := scratch.Open(t, name)
	s, err := sqlstore.New(t.Context(), db.Write, db.Dialect, append(db.StoreOptions(), sqlstore.WithLogger(slog.New(slog.DiscardHandler)))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return s
}

func TestDatabaseRecords(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		env := map[string]string{"IDEMCTL_DATABASE": name}
		if !strings.HasPrefix(name, "sqlite:") {
			if got := idemctl(t, env, "record", "list"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "idemctl store migrate") {
				t.Errorf("record list before a migration = %+v, want advice", got)
			}
		}
		s := migratedStore(t, name)
		if got := idemctl(t, env, "--json", "record", "list"); got.code != 0 || got.stdout != "" {
			t.Errorf("record list = %+v, want nothing", got)
		}
		begin(t, s, "runs")
		settle(t, s, "doubtful", driver.StateUnknown, nil)
		if got := idemctl(t, env, "--json", "record", "list"); got.code != 0 || strings.Count(got.stdout, "\n") != 2 {
			t.Errorf("record list = %+v, want 2", got)
		}
		if got := idemctl(t, env, "--json", "record", "list", "--state", "unknown"); got.code != 0 || strings.Count(got.stdout, "\n") != 1 {
			t.Errorf("record list of unknown ones = %+v, want 1", got)
		}
		var r record.Row
		got := idemctl(t, env, "--json", "record", "show", "--scope", "m", "doubtful")
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.State != "unknown" || r.Attempt != 1 {
			t.Errorf("record show = %+v, %v, want unknown", got, err)
		}
		if got := idemctl(t, env, "record", "show", "--scope", "m", "nothing"); got.code != cli.ExitNothing {
			t.Errorf("record show of no record = %+v, want %d", got, cli.ExitNothing)
		}

		if got := idemctl(t, env, "record", "resolve", "--scope", "m", "runs", "--not-applied"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "may be running") {
			t.Errorf("record resolve of a pending one = %+v, want a refusal", got)
		}
		got = idemctl(t, env, "--json", "record", "resolve", "--scope", "m", "doubtful", "--by", "alice", "--reason", "in the ledger",
			"--applied", answerFile(t, `{"status":201,"headers":{"Content-Type":["application/json"]},"body":"{}"}`))
		if got.code != 0 || !strings.Contains(got.stderr, "no lock was taken") {
			t.Errorf("record resolve = %+v, want it done", got)
		}
		got = idemctl(t, env, "--json", "record", "show", "--scope", "m", "doubtful")
		if err := json.Unmarshal([]byte(got.stdout), &r); err != nil || r.State != "completed" || r.Status != 201 || len(r.Decisions) != 1 ||
			r.Decisions[0].By != "alice" || r.Decisions[0].Reason != "in the ledger" {
			t.Errorf("record show = %+v, %v, want alice's decision", got, err)
		}
		issued := idemctl(t, env, "token", "issue", "--scope", "m", "--ttl", "1h")
		if rec := stateOf(t, s, idem.Key(strings.TrimSpace(issued.stdout))); issued.code != 0 || rec.State != driver.StateIssued || rec.TokenExpires.Sub(rec.Created) != time.Hour {
			t.Errorf("token issue = %+v, %+v, want an issued token", issued, rec)
		}
	})
}

func TestDatabaseRetire(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		s := migratedStore(t, name)
		env := map[string]string{"IDEMCTL_DATABASE": name}
		domain := beginUnder(t, s, memorylock.New(), "runs").Fence().Domain
		if got := idemctl(t, env, "store", "retire", domain, "--no-zookeeper"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "may be alive") {
			t.Errorf("store retire just now = %+v, want a refusal", got)
		}
		if got := idemctl(t, env, "--session-timeout", "1ns", "store", "retire", domain, "--no-zookeeper", "--by", "alice"); got.code != 0 || !strings.Contains(got.stdout, "1 pending records") {
			t.Errorf("store retire = %+v, want it done", got)
		}
		if retired, err := s.DomainRetired(t.Context(), domain); !retired || err != nil {
			t.Errorf("DomainRetired() = %v, %v, want true", retired, err)
		}
		if got := idemctl(t, env, "store", "retire", "another", "--no-zookeeper"); got.code != 0 {
			t.Errorf("store retire of another = %+v, want it done", got)
		}
	})
}

func TestDatabaseDoctor(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		env := map[string]string{"IDEMCTL_DATABASE": name}
		if !strings.HasPrefix(name, "sqlite:") {
			examine(t, env).wantFinding(t, "fail", "database-schema", "store migrate")
		}
		s := migratedStore(t, name)
		settle(t, s, "doubtful", driver.StateUnknown, nil)
		got := examine(t, env)
		got.wantNoFinding(t, "fail")
		for _, check := range []string{"database", "database-version", "database-schema", "database-write"} {
			got.wantFinding(t, "ok", check, "")
		}
		if strings.HasPrefix(name, "postgres:") { // those of tests do not sync
			got.wantFinding(t, "warn", "database-settings", "fsync is off")
		} else {
			got.wantFinding(t, "ok", "database-settings", "")
		}
		got.wantFinding(t, "ok", "clock-skew", "2 clocks")
		got.wantFinding(t, "warn", "open-records", "1 unknown")
		got.wantFinding(t, "warn", "record-domains", "")

		db := scratch.Open(t, name)
		execSQL(t, db.Write, "INSERT INTO idem_schema (version, applied) VALUES (99, 0)")
		examine(t, env).wantFinding(t, "fail", "database-schema", "newer build")
	})
}

func TestDatabaseIsDown(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"postgres://idem:hidden@127.0.0.1:1/x", "mysql://idem:hidden@127.0.0.1:1/x"} {
		got := examine(t, map[string]string{"IDEMCTL_DATABASE": name})
		got.wantFinding(t, "fail", "database", "refused")
		if strings.Contains(got.stdout+got.stderr, "hidden") {
			t.Errorf("doctor tells the password: %+v", got)
		}
	}
}

// A joined attempt has no lock. It is settled unless a transaction holds its key.
func TestDatabaseResolvesJoinedAttempts(t *testing.T) {
	t.Parallel()
	onEachDatabase(t, func(t *testing.T, name string) {
		s := migratedStore(t, name)
		env := map[string]string{"IDEMCTL_DATABASE": name}
		id := idem.NewKeyID("m", "escaped")
		req := driver.BeginRequest{Route: "POST /pay", Fence: driver.JoinedFence(1), Nonce: driver.NewNonce(), KeyTTL: time.Hour}
		if res, err := s.Begin(t.Context(), id, req); err != nil || !res.Begun {
			t.Fatal(res, err)
		}
		got := examine(t, env)
		got.wantFinding(t, "ok", "record-domains", "")
		if got := idemctl(t, env, "--session-timeout", "1ns", "store", "retire", driver.JoinedDomain, "--no-zookeeper"); got.code != cli.ExitFailed || !strings.Contains(got.stderr, "joined transactions") {
			t.Errorf("store retire joined = %+v, want a refusal", got)
		}
		if !strings.HasPrefix(name, "sqlite:") {
			joined, err := s.Joined()
			if err != nil {
				t.Fatal(err)
			}
			held, err := joined.BeginJoined(t.Context(), id, driver.JoinedRequest{Route: "POST /pay", Nonce: driver.NewNonce(), RunAgainFrom: &driver.Attempt{Number: 1, Fence: req.Fence, Nonce: req.Nonce}})
			if err != nil || held.Tx == nil {
				t.Fatal(held, err)
			}
			if got := idemctl(t, env, "record", "resolve", "--scope", "m", "escaped", "--not-applied"); got.code != cli.ExitNothing || !strings.Contains(got.stderr, "a transaction holds") {
				t.Errorf("record resolve of a running one = %+v, want a refusal", got)
			}
			if err := held.Tx.Rollback(t.Context()); err != nil {
				t.Fatal(err)
			}
		}
		if got := idemctl(t, env, "record", "resolve", "--scope", "m", "escaped", "--not-applied", "--by", "alice"); got.code != 0 || got.stderr != "" {
			t.Errorf("record resolve = %+v, want it done", got)
		}
		if rec := stateOf(t, s, "escaped"); rec.State != driver.StateReleased || rec.Decision.By != "alice" {
			t.Errorf("record = %+v, want it released", rec)
		}
	})
}
