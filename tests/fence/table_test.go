package fence_test

import (
	"database/sql"
	"errors"
	"strings"
	"sync"
	"testing"

	"github.com/idemkeeper/idemkeeper/fence"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestNamesAreRefused(t *testing.T) {
	t.Parallel()
	for name, opts := range map[string][]fence.Option{
		"quotes":           {fence.WithName(`a"b`)},
		"empty":            {fence.WithName("")},
		"begins with 1":    {fence.WithName("1a")},
		"long":             {fence.WithName(strings.Repeat("a", 65))},
		"quotes in schema": {fence.WithSchema("a`; DROP")},
	} {
		for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL} {
			if _, err := fence.New(d, opts...); err == nil {
				t.Errorf("%s: New(%v) = nil, want an error", name, d)
			}
		}
	}
	if _, err := fence.New(dialect.SQLite, fence.WithSchema("s")); err == nil {
		t.Error("New(SQLite) with a schema = nil, want an error")
	}
	if _, err := fence.New(""); err == nil || !strings.Contains(err.Error(), "dialect.PostgreSQL") {
		t.Errorf("New() without a dialect = %v, want an error that says where they are", err)
	}
}

// Several processes migrate at once, and again later.
func TestMigrate(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		other := newTable(t, l.dialect, fence.WithName("Other_Fences"), nil)
		if err := other.Check(t.Context(), l.db); err == nil || !strings.Contains(err.Error(), "Migrate") {
			t.Errorf("Check() without the table = %v, want advice", err)
		}
		if err := l.raised(t, other, "op", in("a", 1)); err == nil {
			t.Error("Raise() without the table = nil, want an error")
		}
		var wg sync.WaitGroup
		for range 8 {
			wg.Go(func() {
				if err := other.Migrate(t.Context(), l.db); err != nil {
					t.Errorf("Migrate() = %v", err)
				}
			})
		}
		wg.Wait()
		if err := other.Check(t.Context(), l.db); err != nil {
			t.Errorf("Check() = %v", err)
		}
		// The two tables know nothing of each other.
		if err := l.pay(t.Context(), sql.LevelDefault, "op", in("a", 9)); err != nil {
			t.Error(err)
		}
		if err := l.raised(t, other, "op", in("a", 1)); err != nil {
			t.Errorf("Raise() in another table = %v", err)
		}
		// A table of that name that is something else is refused.
		l.exec(t, "CREATE TABLE foreign_one (x INTEGER)")
		foreign := newTable(t, l.dialect, fence.WithName("foreign_one"))
		if err := foreign.Migrate(t.Context(), l.db); err == nil {
			t.Error("Migrate() over another table = nil, want an error")
		}
		if n := l.db.Stats().InUse; n != 0 {
			t.Errorf("%d connections are in use after a failed Migrate(), want 0", n)
		}
		if err := foreign.Check(t.Context(), l.db); err == nil {
			t.Error("Check() of another table = nil, want an error")
		}
	})
}

func TestSchema(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		if l.dialect == dialect.SQLite {
			return // it has none
		}
		schema := "fence_schema"
		if l.dialect == dialect.MySQL { // a schema is a database there
			must(t, l.db.QueryRow("SELECT database()").Scan(&schema))
		} else {
			l.exec(t, "CREATE SCHEMA "+schema)
		}
		table := newTable(t, l.dialect, fence.WithSchema(schema), fence.WithName("f"))
		must(t, table.Migrate(t.Context(), l.db))
		var n int
		if err := l.db.QueryRow("SELECT count(*) FROM " + schema + ".f").Scan(&n); err != nil {
			t.Errorf("the table is not in %s: %v", schema, err)
		}
	})
}

// The dialect of another server is named at the start, also where the statements of both are alike and the
// locks are not.
func TestDialectOfAnotherServerIsNamed(t *testing.T) {
	onEach(t, func(t *testing.T, l *ledger) {
		for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
			table := newTable(t, d)
			for name, err := range map[string]error{"Migrate": table.Migrate(t.Context(), l.db), "Check": table.Check(t.Context(), l.db)} {
				if d == l.dialect && err != nil || d != l.dialect && (!errors.Is(err, dialect.ErrWrong) || !strings.HasSuffix(err.Error(), "use dialect."+string(l.dialect))) {
					t.Errorf("%s(%v) of %v = %v, want the right one to be named", name, d, l.dialect, err)
				}
			}
		}
	})
}
