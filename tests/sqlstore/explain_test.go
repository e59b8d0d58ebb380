package sqlstore_test

import (
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A dialect that is not the server's is named by each function, with and without tables.
func TestDialectOfAnotherServerIsNamed(t *testing.T) {
	t.Parallel()
	onEach(t, func(t *testing.T, b backend) {
		empty, full := b.fresh(t), b.migrated(t)
		for _, d := range []dialect.Dialect{dialect.PostgreSQL, dialect.MySQL, dialect.SQLite} {
			if d == b.dialect {
				continue
			}
			for _, p := range []pools{empty, full} {
				_, asNew := sqlstore.New(t.Context(), p.write, d, sqlstore.WithReadPool(p.read))
				_, asPlan := sqlstore.Plan(t.Context(), p.write, d)
				for name, err := range map[string]error{"New": asNew, "Plan": asPlan, "Migrate": sqlstore.Migrate(t.Context(), p.write, d)} {
					if name == "New" || errors.Is(err, dialect.ErrWrong) { // tables of the same version need no migration
						want := "it is " + string(d) + ", and the database is " + b.name
						if !errors.Is(err, dialect.ErrWrong) || !strings.Contains(err.Error(), want) || !strings.HasSuffix(err.Error(), "use dialect."+string(b.dialect)) {
							t.Errorf("%s(%v) = %v, want %q", name, d, err, want)
						}
					} else if p == empty {
						t.Errorf("%s(%v) without tables = %v, want %v", name, d, err, dialect.ErrWrong)
					}
				}
			}
		}
	})
}

// SQLite says "unable to open database file", and neither which nor why.
func TestSQLiteFileThatCannotBeOpenedIsNamed(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	must(t, os.Mkdir(filepath.Join(dir, "folder.db"), 0o700))
	for file, why := range map[string]string{
		filepath.Join(dir, "no such", "a b.db"): "no such file or directory",
		filepath.Join(dir, "folder.db"):         "is a directory",
	} {
		forWriting, _ := sqlstore.SQLiteDSN(file)
		for _, dsn := range []string{forWriting, file} {
			db := open(t, "sqlite", dsn)
			_, asNew := sqlstore.New(t.Context(), db, dialect.SQLite)
			for name, err := range map[string]error{"New": asNew, "Migrate": sqlstore.Migrate(t.Context(), db, dialect.SQLite)} {
				if err == nil || !strings.Contains(err.Error(), file) || !strings.Contains(err.Error(), why) {
					t.Errorf("%s() of %s = %v, want file and reason", name, dsn, err)
				}
			}
		}
	}
}
