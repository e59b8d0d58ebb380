package sqlstore_test

import (
	"errors"
	"strings"
	"sync"
	"testing"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Several processes migrate at once, and again later.
func TestMigrate(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.fresh(t)
		_, err := sqlstore.New(t.Context(), p.write, b.dialect, sqlstore.WithReadPool(p.read))
		if !errors.Is(err, sqlstore.ErrNotMigrated) || !strings.Contains(err.Error(), "there is no table") {
			t.Errorf("New() before Migrate = %v, want %v", err, sqlstore.ErrNotMigrated)
		}
		for _, processes := range []int{8, 1} {
			var wg sync.WaitGroup
			for range processes {
				wg.Go(func() {
					if err := sqlstore.Migrate(t.Context(), p.write, b.dialect); err != nil {
						t.Errorf("Migrate() = %v, want <nil>", err)
					}
				})
			}
			wg.Wait()
		}
		b.store(t, p)
	})
}

// A migration that fails leaves nothing behind, so it can be repeated.
func TestMigrationThatFailsIsUndone(t *testing.T) {
	t.Parallel()
	for _, b := range []backend{backends()[0], backends()[3]} { // MySQL commits each statement by itself
		t.Run(b.name, func(t *testing.T) {
			p := b.fresh(t)
			mustExec(t, p.write, "CREATE TABLE idem_notes (mine INTEGER)")
			if err := sqlstore.Migrate(t.Context(), p.write, b.dialect); err == nil || errors.Is(err, sqlstore.ErrNewerSchema) {
				t.Errorf("Migrate() beside another table of that name = %v, want the error of the database", err)
			}
			if _, err := sqlstore.New(t.Context(), p.write, b.dialect, sqlstore.WithReadPool(p.read)); !errors.Is(err, sqlstore.ErrNotMigrated) {
				t.Errorf("New() = %v, want %v", err, sqlstore.ErrNotMigrated)
			}
			if _, err := p.write.Exec("SELECT k FROM idem_records"); err == nil {
				t.Error("the failed migration has left its tables")
			}
			mustExec(t, p.write, "DROP TABLE idem_notes")
			must(t, sqlstore.Migrate(t.Context(), p.write, b.dialect))
			b.store(t, p)
		})
	}
}

func TestNamesOfTables(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		p := b.fresh(t)
		opts := []sqlstore.Option{sqlstore.WithTablePrefix("Payments_" + strings.Repeat("x", 38))} // the longest one
		if b.kind().Schemas {
			schema := freshName(t)
			mustExec(t, p.write, "CREATE SCHEMA "+schema)
			t.Cleanup(func() {
				if b.dialect == dialect.MySQL { // the others are in the test's database
					mustExec(t, p.write, "DROP SCHEMA "+schema)
				}
			})
			opts = append(opts, sqlstore.WithSchema(schema))
		}
		must(t, sqlstore.Migrate(t.Context(), p.write, b.dialect, opts...))
		b.store(t, p, opts...)
		if err := sqlstore.Migrate(t.Context(), p.write, b.dialect); err != nil {
			t.Errorf("Migrate() beside it = %v, want <nil>", err)
		}
	})
}
