package sqlstore_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Each statement finds its rows by an index, among many records that it does not want.
func TestPlans(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		s := b.store(t, b.migrated(t), sqlstore.WithExpiry(0))
		id, a := begin(t, s, "first")
		st := settlementOf(a, "")
		st.KeyTTL = 48 * time.Hour
		must(t, callSettle(t.Context(), s, id, st))
		duplicate(t, s, id, 2000)
		analyze := map[dialect.Dialect]string{dialect.PostgreSQL: "ANALYZE idem_records", dialect.MySQL: "ANALYZE TABLE idem_records", dialect.SQLite: "ANALYZE"}
		mustExec(t, dbOf(s), analyze[dialectOf(s)])
		begin(t, s, "open")
		k := key(1)
		for _, tt := range []struct {
			name, statement, index string
			args                   []any
		}{
			{"read", *statementOf(s, "read"), "", []any{k[:]}},
			{"list", *statementOf(s, "list"), "idem_records_open", []any{0, 0, 0, k[:], 10}},
			{"due", *statementOf(s, "due"), "idem_records_expires", []any{0, 10}},
		} {
			plan := explain(t, s, tt.statement, tt.args)
			for _, scan := range []string{"Seq Scan on idem_records", "SCAN r", "SCAN idem_records\n", "| ALL |", "Sort", "filesort", "TEMP B-TREE"} {
				if strings.Contains(plan+"\n", scan) {
					t.Errorf("%s: the plan has %q:\n%s", tt.name, scan, plan)
				}
			}
			if !strings.Contains(plan, tt.index) {
				t.Errorf("%s: the plan does not use %s:\n%s", tt.name, tt.index, plan)
			}
		}
	})
}

// explain returns a plan as one text, with " | " between its columns.
func explain(tb testing.TB, s *sqlstore.Store, statement string, args []any) string {
	tb.Helper()
	prefix := "EXPLAIN "
	if dialectOf(s) == dialect.SQLite {
		prefix = "EXPLAIN QUERY PLAN "
	}
	rows, err := readOf(s).QueryContext(tb.Context(), prefix+statement, args...)
	must(tb, err)
	defer rows.Close()
	names, err := rows.Columns()
	must(tb, err)
	var b strings.Builder
	for rows.Next() {
		values := make([]any, len(names))
		for i := range values {
			values[i] = new(any)
		}
		must(tb, rows.Scan(values...))
		for _, v := range values {
			v := *v.(*any)
			if text, ok := v.([]byte); ok {
				v = string(text)
			}
			fmt.Fprintf(&b, "| %v ", v)
		}
		b.WriteString("|\n")
	}
	must(tb, rows.Err())
	return b.String()
}
