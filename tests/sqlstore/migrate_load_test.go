package sqlstore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path"
	"reflect"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/fstest"
	"time"
	"unsafe"

	"github.com/idemkeeper/idemkeeper/internal/test/inside"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// withNext has the migrations of a later build, which adds a column to the table of records.
func withNext(t *testing.T, b backend) sqlstore.Option {
	t.Helper()
	folder := path.Join("migrations", map[dialect.Dialect]string{dialect.PostgreSQL: "postgres", dialect.MySQL: "mysql", dialect.SQLite: "sqlite"}[b.dialect])
	first, err := os.ReadFile(path.Join("../../tokenstore/sql", folder, "0001_records.sql"))
	must(t, err)
	files := fstest.MapFS{
		path.Join(folder, "0001_records.sql"): {Data: first},
		path.Join(folder, "0002_later.sql"):   {Data: []byte("ALTER TABLE {records} ADD COLUMN later INT NOT NULL DEFAULT 0;\n")},
	}
	return inside.Option[sqlstore.Option](func(config any) {
		next := reflect.New(reflect.ValueOf(config).Elem().FieldByName("next").Type().Elem())
		*inside.Field[fs.FS](next.Interface(), "files") = files
		*inside.Field[int](next.Interface(), "latest") = sqlstore.SchemaVersion + 1
		*inside.Field[unsafe.Pointer](config, "next") = next.UnsafePointer()
	})
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
	return sqlFor(b.dialect, "", "INSERT INTO {records} (k, form, rev, state, kind, route, fingerprint, attempt, domain, fence, nonce, settlement, repaired, "+
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
		if err := sqlstore.Migrate(t.Context(), p.write, b.dialect, withNext(t, b)); err != nil {
			t.Errorf("Migrate() = %v, want <nil>", err)
		}
		close(migrated)
		all.Wait()
		records, payments := get[int](t, p.read, "SELECT count(*) FROM idem_records"), get[int](t, p.read, "SELECT count(*) FROM payments")
		shown := get[int](t, p.read, "SELECT count(*) FROM idem_readable WHERE state = 'completed'")
		if records != rows+payments || shown != records {
			t.Errorf("%d records, %d of them in the view, and %d payments, want %d more records than payments", records, shown, payments, rows)
		}
		b.store(t, p, withNext(t, b))
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
		limited, cancel := context.WithTimeout(t.Context(), 5*time.Second) // longer than the least wait of MySQL
		defer cancel()
		failed := make(chan error, 1)
		go func() {
			failed <- sqlstore.Migrate(limited, p.write, b.dialect, withNext(t, b), sqlstore.WithMigrationWait(50*time.Millisecond))
		}()
		waiting := "SELECT count(*) FROM pg_locks WHERE NOT granted AND relation = 'idem_records'::regclass"
		if b.dialect == dialect.MySQL {
			waiting = "SELECT count(*) FROM information_schema.processlist WHERE state LIKE 'Waiting for table metadata lock%' AND db = database()"
		}
		for get[int](t, p.read, waiting) == 0 {
			select {
			case err := <-failed:
				t.Fatalf("Migrate() = %v before it waited", err)
			default:
			}
		}
		patient, cancel := context.WithTimeout(t.Context(), patience)
		defer cancel()
		if err := payOld(patient, b, p, 1); err != nil {
			t.Errorf("payment behind the migration = %v, want <nil>", err)
		}
		if err := <-failed; !errors.Is(err, sqlstore.ErrTablesInUse) || !strings.Contains(err.Error(), "ALTER TABLE") {
			t.Errorf("Migrate() = %v, want %v and the statement", err, sqlstore.ErrTablesInUse)
		}
		must(t, long.Rollback())
		must(t, sqlstore.Migrate(t.Context(), p.write, b.dialect, withNext(t, b)))
		b.store(t, p, withNext(t, b))
	})
}

// Instances that run while the next version migrates stay ready. They do not start again. What is done is not
// done again, and the migrations of this build are refused from then on.
func TestRunningInstanceStaysReadyAfterAMigrationOfANewerBuild(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p)
		plan, err := sqlstore.Plan(t.Context(), p.write, b.dialect, withNext(t, b))
		if err != nil || plan.From != 1 || plan.To != 2 || !slices.Equal(plan.Changed, []string{"idem_records"}) || len(plan.Made) > 0 {
			t.Errorf("Plan() of the next version = %+v, %v, want a change of the records", plan, err)
		}
		for range 2 {
			must(t, sqlstore.Migrate(t.Context(), p.write, b.dialect, withNext(t, b)))
		}
		if err := s.Ping(t.Context()); err != nil {
			t.Errorf("Ping() = %v, want <nil>", err)
		}
		if err := sqlstore.Migrate(t.Context(), p.write, b.dialect); !errors.Is(err, sqlstore.ErrNewerSchema) {
			t.Errorf("Migrate() of this build = %v, want %v", err, sqlstore.ErrNewerSchema)
		}
	})
}
