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
		p, spy := b.migrated(t).spied(t)
		s := b.store(t, p, sqlstore.WithExpiry(0))
		id, a := begin(t, s, "first")
		st := settlementOf(a, "")
		st.KeyTTL = 48 * time.Hour
		must(t, callSettle(t.Context(), s, id, st))
		duplicate(t, s, id, 2000)
		analyze := map[dialect.Dialect]string{dialect.PostgreSQL: "ANALYZE idem_records", dialect.MySQL: "ANALYZE TABLE idem_records", dialect.SQLite: "ANALYZE"}
		mustExec(t, s.write, analyze[s.dialect])
		begin(t, s, "open")
		all := calls(s, key(1))
		for name, index := range map[string]string{"Get": "", "ListOpen": "idem_records_open", "Expire": "idem_records_expires"} {
			var first statement // that reads records
			spy.sees(func(st *statement) {
				if first.text == "" && st.args != nil && strings.Contains(st.text, "idem_records") {
					first = *st
				}
			})
			must(t, all[name](t.Context()))
			spy.sees(func(*statement) {})
			plan := explain(t, s, first)
			for _, scan := range []string{"Seq Scan on idem_records", "SCAN r", "SCAN idem_records\n", "| ALL |", "Sort", "filesort", "TEMP B-TREE"} {
				if strings.Contains(plan+"\n", scan) {
					t.Errorf("%s(): the plan has %q:\n%s", name, scan, plan)
				}
			}
			if !strings.Contains(plan, index) {
				t.Errorf("%s(): the plan does not use %s:\n%s", name, index, plan)
			}
		}
	})
}

// explain returns a plan as one text, with " | " between its columns.
func explain(tb testing.TB, s *store, st statement) string {
	tb.Helper()
	args := make([]any, len(st.args))
	for i, arg := range st.args {
		args[i] = arg.Value
	}
	prefix := "EXPLAIN "
	if s.dialect == dialect.SQLite {
		prefix = "EXPLAIN QUERY PLAN "
	}
	rows, err := s.read.QueryContext(tb.Context(), prefix+st.text, args...)
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
