package sqlstore_test

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// laterDir is the folder of laterBuild, once that was called.
var laterDir string

// laterBuild is the path of idemctl of a later build, whose migration adds a column to the table of records.
var laterBuild = sync.OnceValues(func() (path string, err error) {
	root, err := filepath.Abs("../..")
	if err != nil {
		return "", err
	}
	dir, err := os.MkdirTemp("", "idemkeeper-later-")
	if err != nil {
		return "", err
	}
	laterDir = dir
	path = filepath.Join(dir, "idemctl")
	of := filepath.Join(root, "tokenstore", "sql")
	code, err := os.ReadFile(filepath.Join(of, "migrate.go"))
	if err != nil {
		return path, err
	}
	version := func(n int) string { return fmt.Sprint("const SchemaVersion = ", n, "\n") }
	files := map[string]string{
		filepath.Join(of, "migrate.go"): strings.Replace(string(code), version(sqlstore.SchemaVersion), version(sqlstore.SchemaVersion+1), 1),
	}
	for _, kind := range []string{"postgres", "mysql", "sqlite"} {
		files[filepath.Join(of, "migrations", kind, fmt.Sprintf("%04d_later.sql", sqlstore.SchemaVersion+1))] = "ALTER TABLE {records} ADD COLUMN later INT NOT NULL DEFAULT 0;\n"
	}
	overlay := map[string]string{}
	for file, text := range files {
		overlay[file] = filepath.Join(dir, strings.ReplaceAll(file, string(filepath.Separator), "_"))
		if err := os.WriteFile(overlay[file], []byte(text), 0o600); err != nil {
			return path, err
		}
	}
	list, err := json.Marshal(map[string]any{"Replace": overlay})
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "overlay.json"), list, 0o600)
	}
	if err != nil {
		return path, err
	}
	build := exec.Command("go", "build", "-overlay", filepath.Join(dir, "overlay.json"), "-o", path, "./cmd/idemctl")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return path, fmt.Errorf("%w: %s", err, out)
	}
	return path, nil
})

// later runs idemctl of the later build on a database.
func later(t *testing.T, b backend, p pools, args ...string) (string, error) {
	t.Helper()
	path, err := laterBuild()
	must(t, err)
	url := p.dsn
	switch b.dialect {
	case dialect.MySQL:
		cfg := parsedMySQL(t, p.dsn)
		url = "mysql://" + cfg.User + ":" + cfg.Passwd + "@" + cfg.Addr + "/" + cfg.DBName
	case dialect.SQLite:
		url = "sqlite:" + get[string](t, p.read, "SELECT file FROM pragma_database_list WHERE name = 'main'")
	}
	cmd := exec.CommandContext(t.Context(), path, args...)
	cmd.Env = append(os.Environ(), "IDEMCTL_DATABASE="+url)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// wantLater wants the later build to migrate, and to work with the tables.
func wantLater(t *testing.T, b backend, p pools) {
	t.Helper()
	for _, command := range []string{"store migrate", "record list"} {
		if out, err := later(t, b, p, strings.Fields(command)...); err != nil {
			t.Errorf("%s of the later build = %v: %s", command, err, out)
		}
	}
}

// onFirstVersion runs a test on tables of this build with many records.
func onFirstVersion(t *testing.T, rows int, f func(t *testing.T, b backend, p pools)) {
	t.Helper()
	onEachServer(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		mustExec(t, p.write, "CREATE TABLE payments (op BIGINT NOT NULL, amount BIGINT NOT NULL)")
		from, key := "generate_series(1, %d) AS s(seq)", "decode(md5(seq::text) || md5(seq::text), 'hex')"
		if b.dialect == dialect.MySQL {
			from, key = "(WITH RECURSIVE s AS (SELECT 1 AS seq UNION ALL SELECT seq + 1 FROM s WHERE seq < %d) SELECT seq FROM s) AS s", "UNHEX(SHA2(seq, 256))"
		}
		insert := oldRecord(b, key, "seq") + " FROM " + fmt.Sprintf(from, rows)
		tx, err := p.write.BeginTx(t.Context(), nil)
		must(t, err)
		if b.name != "PostgreSQL" { // both name the limit of a recursion
			for _, limit := range []string{"max_recursive_iterations", "cte_max_recursion_depth"} {
				_, _ = tx.ExecContext(t.Context(), fmt.Sprintf("SET SESSION %s = %d", limit, rows))
			}
		}
		must(t, errOf(tx.ExecContext(t.Context(), insert)))
		must(t, tx.Commit())
		f(t, b, p)
	})
}

// oldRecord inserts completed records as this build does, which knows no later column.
func oldRecord(b backend, key, seq string) string {
	return b.sql("idem_", "INSERT INTO {records} (k, form, rev, state, kind, route, fingerprint, attempt, domain, fence, nonce, settlement, repaired, "+
		"created, started, settled, result_expires, key_expires, token_expires, decided_by, decided_reason, expires) "+
		"SELECT "+key+", 1, "+seq+", 3, 0, 'pay', 'x', 1, 'joined', 1, 'n', 's', 0, 1, 1, 1, 4000000000000000, 4000000000000000, 0, '', '', 4000000000000000")
}

// payOld is a payment of this build.
func payOld(ctx context.Context, b backend, p pools, i int64) error {
	tx, err := p.write.BeginTx(ctx, nil)
	if err != nil {
		return err
	}
	defer tx.Rollback()
	key := fmt.Sprintf("decode('%064x', 'hex')", i)
	if b.dialect == dialect.MySQL {
		key = fmt.Sprintf("UNHEX('%064x')", i)
	}
	for _, statement := range []string{oldRecord(b, key, "1"), fmt.Sprintf("INSERT INTO payments (op, amount) VALUES (%d, 100)", i)} {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return err
		}
	}
	return tx.Commit()
}

// Instances of this build pay while a later one migrates their full tables, and none of their payments fails.
func TestPaymentsGoOnDuringAMigration(t *testing.T) {
	t.Parallel()
	const rows = 50_000
	onFirstVersion(t, rows, func(t *testing.T, b backend, p pools) {
		const payers = 4
		var next atomic.Int64
		pay := func() bool {
			err := payOld(t.Context(), b, p, next.Add(1))
			if err != nil {
				t.Errorf("payment = %v, want <nil>", err)
			}
			return err == nil
		}
		var all, begun sync.WaitGroup
		begun.Add(payers)
		migrated := make(chan struct{})
		for range payers {
			all.Go(func() {
				pay()
				begun.Done()
				for pay() {
					select {
					case <-migrated:
						pay()
						return
					default:
					}
				}
			})
		}
		begun.Wait()
		wantLater(t, b, p)
		close(migrated)
		all.Wait()
		records, payments := get[int](t, p.read, "SELECT count(*) FROM idem_records"), get[int](t, p.read, "SELECT count(*) FROM payments")
		shown := get[int](t, p.read, "SELECT count(*) FROM idem_readable WHERE state = 'completed'")
		if records != rows+payments || shown != records {
			t.Errorf("%d records, %d of them in the view, and %d payments, want %d more records than payments", records, shown, payments, rows)
		}
	})
}

// A migration that finds the table in use lets payments pass, and says after a while that it gave up. Without a
// limit every payment would wait behind it until the other transaction ends.
// On MySQL, the list of processes cannot be read while other tests send binary text, so it runs alone.
func TestMigrationDoesNotBlockPaymentsBehindALongTransaction(t *testing.T) {
	onFirstVersion(t, 1, func(t *testing.T, b backend, p pools) {
		long, err := p.write.BeginTx(t.Context(), &sql.TxOptions{Isolation: sql.LevelRepeatableRead})
		must(t, err)
		defer long.Rollback()
		var n int
		must(t, long.QueryRowContext(t.Context(), "SELECT count(*) FROM idem_records").Scan(&n))
		failed := make(chan string, 1)
		go func() {
			out, err := later(t, b, p, "store", "migrate", "--lock-timeout", "50ms")
			failed <- fmt.Sprint(out, err)
		}()
		waiting := "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'idem_records'::regclass"
		if b.dialect == dialect.MySQL {
			waiting = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%' AND db = database()"
		}
		for get[int](t, p.read, waiting) == 0 {
			select {
			case out := <-failed:
				t.Fatalf("the migration ended before it waited: %s", out)
			default:
			}
		}
		patient, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := payOld(patient, b, p, 1); err != nil {
			t.Errorf("payment behind the migration = %v, want <nil>", err)
		}
		if out := <-failed; !strings.Contains(out, sqlstore.ErrTablesInUse.Error()) || !strings.Contains(out, "ALTER TABLE") {
			t.Errorf("the migration ended with %q, want %v and the statement", out, sqlstore.ErrTablesInUse)
		}
		must(t, long.Rollback())
		wantLater(t, b, p)
	})
}

// Instances that run while the next version migrates stay ready. They do not start again. What is done is not
// done again, and the migrations of this build are refused from then on.
func TestRunningInstanceStaysReadyAfterAMigrationOfANewerBuild(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p)
		for _, want := range []string{`{"schema_version":2,"from_version":1,"changed":["idem_records"]}`, `{"schema_version":2,"from_version":2}`} {
			if out, err := later(t, b, p, "store", "migrate", "--json"); err != nil || strings.TrimSpace(out) != want {
				t.Errorf("store migrate of the later build = %q, %v, want %s", out, err, want)
			}
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("Ping() = %v, want <nil>", err)
		}
		if err := sqlstore.Migrate(t.Context(), p.write, b.dialect); !errors.Is(err, sqlstore.ErrNewerSchema) {
			t.Errorf("Migrate() of this build = %v, want %v", err, sqlstore.ErrNewerSchema)
		}
	})
}
