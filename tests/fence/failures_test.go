package fence_test

import (
	"database/sql"
	"errors"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// raised raises a fence in a transaction of its own.
func (l *ledger) raised(t *testing.T, table *fence.Table, op string, f driver.Fence) error {
	t.Helper()
	return l.inTx(t.Context(), sql.LevelDefault, func(tx *sql.Tx) error { return table.Raise(t.Context(), tx, op, f) })
}

// settled is the look of a resolver, in a transaction of its own.
func (l *ledger) settled(t *testing.T, op string, f, doubt driver.Fence) error {
	t.Helper()
	return l.inTx(t.Context(), sql.LevelDefault, func(tx *sql.Tx) error { return l.fences.Settle(t.Context(), tx, op, f, doubt) })
}

// row is what the table has of an operation.
func (l *ledger) row(t *testing.T, op string) (token int64, past string) {
	t.Helper()
	must(t, l.db.QueryRowContext(t.Context(), "SELECT token, past FROM idem_fences WHERE operation_id = '"+op+"'").Scan(&token, &past))
	return token, past
}

// A row that cannot be read may hide a higher fence. So it refuses every fence, and is not written over.
func TestUnreadableRowRefuses(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		must(t, l.raised(t, l.fences, "op", in("a", 5)))
		for _, damaged := range []string{"{", "7"} {
			l.exec(t, "UPDATE idem_fences SET past = '"+damaged+"'")
			if err := l.pay(t.Context(), sql.LevelDefault, "op", in("a", 6)); err == nil || isStale(err) || !strings.Contains(err.Error(), "past domains") {
				t.Errorf("Raise() over the row %s = %v, want an error about its past domains", damaged, err)
			}
			if token, past := l.row(t, "op"); token != 5 || past != damaged {
				t.Errorf("row = %d, %s, want it as it was", token, past)
			}
		}
		if n := len(l.paid(t, "op")); n != 0 {
			t.Errorf("%d payments, want none", n)
		}
	})
}

// The transaction of a holder whose fence could not be recorded must not commit.
func TestFailingStatementsAreTold(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct{ fault, want string }{
		"insert":  {"CREATE TRIGGER x BEFORE INSERT ON idem_fences BEGIN SELECT RAISE(ABORT, 'disk full'); END", "disk full"},
		"update":  {"CREATE TRIGGER x BEFORE UPDATE ON idem_fences BEGIN SELECT RAISE(ABORT, 'disk full'); END", "disk full"},
		"read":    {"UPDATE idem_fences SET token = 'many'", "many"},
		"deleted": {"CREATE TRIGGER x AFTER INSERT ON idem_fences BEGIN DELETE FROM idem_fences; END", "deleted again and again"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			d, db := sqlite(t)
			l := &ledger{dialect: d, db: db, fences: newTable(t, d)}
			must(t, l.fences.Migrate(t.Context(), db))
			if name == "update" || name == "read" {
				must(t, l.raised(t, l.fences, "op", in("a", 1)))
			}
			l.exec(t, tt.fault)
			err := l.raised(t, l.fences, "op", in("a", 2))
			if _, stale := errors.AsType[*fence.StaleError](err); err == nil || stale || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("Raise() = %v, want an error with %q", err, tt.want)
			}
		})
	}
}

// A row grows by the domains that are over, and by nothing else.
func TestRowDoesNotGrow(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		for range 3 {
			must(t, l.raised(t, l.fences, "op", in("b", 1)))
		}
		if _, past := l.row(t, "op"); past != "[]" {
			t.Errorf("past domains after the same fence three times = %s, want none", past)
		}
		for range 3 {
			must(t, l.settled(t, "op", in("b", 1), in("a", 7)))
		}
		if _, past := l.row(t, "op"); past != `["a"]` {
			t.Errorf("past domains after three looks of a resolver = %s, want a alone", past)
		}
	})
}

// The limits are the longest values that the columns take.
func TestLongestValues(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		longest := strings.Repeat("d", 255)
		if err := l.settled(t, "op", in(longest, 1), in(strings.Repeat("e", 255), 1)); err != nil {
			t.Errorf("Settle() with domains of 255 bytes = %v", err)
		}
		if err := l.settled(t, "op", in(longest, 2), in(strings.Repeat("e", 256), 1)); err == nil {
			t.Error("Settle() of a domain of 256 bytes = nil, want an error")
		}
		name := strings.Repeat("n", map[dialect.Dialect]int{dialect.PostgreSQL: 63, dialect.MySQL: 64, dialect.SQLite: 63}[l.dialect])
		if err := newTable(t, l.dialect, fence.WithName(name)).Migrate(t.Context(), l.db); err != nil {
			t.Errorf("Migrate() of a name of %d bytes = %v", len(name), err)
		}
		if l.dialect != dialect.SQLite {
			newTable(t, l.dialect, fence.WithSchema(name))
			if _, err := fence.New(l.dialect, fence.WithSchema(name+"n")); err == nil {
				t.Errorf("New() with a schema of %d bytes = nil, want an error", len(name)+1)
			}
		}
	})
}
