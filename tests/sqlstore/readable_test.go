package sqlstore_test

import (
	"database/sql"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A DBA sees in the database what each table and column means.
func TestTablesHaveComments(t *testing.T) {
	t.Parallel()
	for _, b := range backends() {
		t.Run(b.name, func(t *testing.T) {
			p := b.migrated(t)
			var missing string
			switch b.dialect {
			case dialect.PostgreSQL:
				missing = `SELECT c.relname, coalesce(a.attname, '') FROM pg_class c
					LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped
					WHERE c.relkind IN ('r', 'v') AND c.relname LIKE 'idem\_%' AND c.relnamespace = 'public'::regnamespace
					AND (col_description(c.oid, a.attnum) IS NULL OR obj_description(c.oid, 'pg_class') IS NULL)`
			case dialect.MySQL:
				missing = `SELECT c.table_name, c.column_name FROM information_schema.columns c JOIN information_schema.tables t
					ON t.table_schema = c.table_schema AND t.table_name = c.table_name
					WHERE c.table_schema = database() AND t.table_type = 'BASE TABLE' AND (c.column_comment = '' OR t.table_comment NOT LIKE 'Idemkeeper: %')`
			default: // each line of the text of a table, but those of the columns that a migration has added
				missing = `SELECT name, sql FROM sqlite_schema WHERE type = 'table' AND name LIKE 'idem%' AND
					(sql NOT LIKE '%-- Idemkeeper: %' OR name = 'idem_records' AND sql NOT LIKE '%-- random, another one after each write%')`
			}
			rows, err := p.read.QueryContext(t.Context(), missing)
			must(t, err)
			defer rows.Close()
			for rows.Next() {
				var table, column string
				must(t, rows.Scan(&table, &column))
				t.Errorf("%s or its column %s has no comment", table, column)
			}
			must(t, rows.Err())
		})
	}
}

// readableRow is a row of the view.
type readableRow struct {
	id, state, kind, route, domain, fence, by, reason string
	started, settled                                  time.Time
	token                                             sql.NullTime
	bytes                                             sql.NullInt64
}

// timeText reads the time of SQLite, whose view has text, and of MySQL without parseTime.
type timeText struct{ to *time.Time }

func (x timeText) Scan(v any) (err error) {
	switch v := v.(type) {
	case time.Time:
		*x.to = v
	case []byte:
		*x.to, err = time.Parse("2006-01-02 15:04:05.999999", string(v))
	case string:
		*x.to, err = time.Parse("2006-01-02 15:04:05.999999", v)
	}
	return err
}

// The view shows what the columns mean, also where a text is not UTF-8 and a number has its highest bit.
func TestViewIsReadable(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		s := b.store(t, p)
		settled, a := begin(t, s, "settled")
		st := settlementOf(a, "alice")
		st.State, st.Response = driver.StateCompleted, &driver.Response{Status: 201, Body: []byte("paid")}
		must(t, callSettle(t.Context(), s, settled, st))
		open, _ := begin(t, s, "open")
		mustExec(t, p.write, s.sql("UPDATE {records} SET fence = -1, route = ? WHERE k = ?"), []byte("p\xff\x00"), open[:])
		rec, err := s.Get(t.Context(), settled)
		must(t, err)
		read := func(id driver.KeyID) (r readableRow) {
			t.Helper()
			var token time.Time
			if err := p.read.QueryRowContext(t.Context(), "SELECT key_id, state, kind, route, domain, fence, decided_by, decided_reason, started, settled, token_expires, response_bytes FROM idem_readable WHERE key_id = '"+id.String()+"'").
				Scan(&r.id, &r.state, &r.kind, &r.route, &r.domain, &r.fence, &r.by, &r.reason, timeText{&r.started}, timeText{&r.settled}, timeText{&token}, &r.bytes); err != nil {
				t.Fatal(err)
			}
			r.token = sql.NullTime{Time: token, Valid: !token.IsZero()}
			return r
		}
		got := read(settled)
		if got.state != "completed" || got.kind != "client-key" || got.route != rec.Route || got.domain != rec.Attempt.Fence.Domain || got.by != "alice" ||
			got.started.Sub(rec.Started).Abs() > time.Millisecond || got.settled.Sub(rec.Settled).Abs() > time.Millisecond || got.token.Valid || got.bytes.Int64 == 0 {
			t.Errorf("view of a completed record = %+v, want %+v", got, rec)
		}
		got = read(open)
		route := map[dialect.Dialect]string{dialect.PostgreSQL: `p\377\000`, dialect.MySQL: "0x70FF00", dialect.SQLite: "p\xff\x00"}[b.dialect]
		if got.state != "pending" || got.fence != "18446744073709551615" || got.route != route || !got.settled.IsZero() || got.bytes.Valid {
			t.Errorf("view of a pending record = %+v", got)
		}
	})
}

// The view is not in the way of a later migration.
func TestTableUnderTheViewCanBeAltered(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.migrated(t)
		mustExec(t, p.write, "ALTER TABLE idem_records ADD COLUMN later INTEGER")
		mustExec(t, p.write, "ALTER TABLE idem_records DROP COLUMN later")
		mustExec(t, p.write, "ALTER TABLE idem_records RENAME TO idem_records_away")
		mustExec(t, p.write, "ALTER TABLE idem_records_away RENAME TO idem_records")
		b.store(t, p)
		_ = get[int](t, p.read, "SELECT count(*) FROM idem_readable WHERE state = 'pending'")
	})
}

// Autovacuum does not wait for a fifth of the table.
func TestAutovacuumComesEarly(t *testing.T) {
	t.Parallel()
	p := backends()[0].migrated(t)
	for _, table := range []string{"idem_records", "idem_bindings"} {
		if got := get[string](t, p.read, "SELECT reloptions::text FROM pg_class WHERE oid = $1::regclass", table); got != "{autovacuum_vacuum_scale_factor=0.01}" {
			t.Errorf("options of %s = %s, want 0.01", table, got)
		}
	}
}
