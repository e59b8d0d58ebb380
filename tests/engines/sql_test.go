package engines

import (
	"context"
	"database/sql"
	"errors"
	"io"
	"log"
	"log/slog"
	"path/filepath"
	"strings"
	"testing"
	"time"

	mysqldriver "github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"

	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/database"
	"github.com/idemkeeper/idemkeeper/internal/database/scratch"
	"github.com/idemkeeper/idemkeeper/internal/test/enginetest"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func TestMain(m *testing.M) {
	_ = mysqldriver.SetLogger(log.New(io.Discard, "", 0)) // it writes of each lost connection
	testserver.ParallelTests(4)                           // they mostly wait for the servers
	goleak.VerifyTestMain(testserver.M{M: m})
}

var quiet = idemsql.WithLogger(slog.New(slog.DiscardHandler))

func TestNew(t *testing.T) {
	t.Parallel()
	for name, server := range map[string]func(testing.TB) string{
		"PostgreSQL": testserver.SharedPostgres, "MariaDB": testserver.SharedMariaDB, "MySQL": testserver.SharedMySQL,
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			_, db := scratch.Database(t, server(t))
			enginetest.Run(t, "locks and records in PostgreSQL", func(t *testing.T, opts ...idem.SetupOption) (*idem.Engine, error) {
				opts = append(opts, quiet, nil, sqllock.WithTTL(5*time.Second))
				return idemsql.New(t.Context(), db.Write, db.Dialect, opts...)
			})
		})
	}
}

func TestNewRefuses(t *testing.T) {
	t.Parallel()
	url, db := scratch.Database(t, testserver.SharedPostgres(t))
	other := sqlstore.WithTablePrefix("other_")
	if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect, other); err != nil {
		t.Fatal(err)
	}
	one, err := database.Open(url, database.Options{Connections: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = one.Close() })
	file := scratch.Open(t, "sqlite:"+filepath.Join(t.TempDir(), "payments.db"))
	if err := sqlstore.Migrate(t.Context(), file.Write, file.Dialect); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]struct {
		db      *sql.DB
		dialect dialect.Dialect
		opt     idemsql.Option
		want    string
	}{
		"no database":          {nil, dialect.PostgreSQL, nil, "no database"},
		"another dialect":      {db.Write, dialect.MySQL, nil, "use dialect.PostgreSQL"},
		"SQLite":               {file.Write, dialect.SQLite, sqlstore.WithReadPool(file.Read), "SQLite"},
		"one connection":       {one.Write, dialect.PostgreSQL, nil, "one connection"},
		"no tables":            {db.Write, dialect.PostgreSQL, sqlstore.WithTablePrefix("none_"), "idemctl store migrate"},
		"locks elsewhere":      {db.Write, dialect.PostgreSQL, sqllock.WithTablePrefix("other_"), "the locks have another prefix or schema"},
		"a short time to live": {db.Write, dialect.PostgreSQL, sqllock.WithTTL(time.Millisecond), "time to live"},
		"read-only":            {db.Write, dialect.PostgreSQL, sqlstore.WithReadOnly(), "read-only"},
		"one process":          {db.Write, dialect.PostgreSQL, sqlstore.WithSoleProcess(), "WithSingleInstance"},
		"an option of no kind": {db.Write, dialect.PostgreSQL, odd{}, "odd is no option"},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			if engine, err := idemsql.New(t.Context(), c.db, c.dialect, quiet, c.opt); err == nil || engine != nil || !strings.Contains(err.Error(), c.want) {
				t.Errorf("New() = %v, %v, want an error with %q", engine, err, c.want)
			}
		})
	}
	if _, err := idemsql.New(t.Context(), db.Write, dialect.PostgreSQL, sqlstore.WithTablePrefix("none_")); !errors.Is(err, sqlstore.ErrNotMigrated) {
		t.Errorf("New() without tables = %v, want %v", err, sqlstore.ErrNotMigrated)
	}
}

type odd struct{}

func (odd) ConfiguresEngine() {}

// The locks follow the records into another schema, and two services in one database have their own keys.
func TestTablesAreApart(t *testing.T) {
	t.Parallel()
	_, db := scratch.Database(t, testserver.SharedPostgres(t))
	if _, err := db.Write.Exec("CREATE SCHEMA apart"); err != nil {
		t.Fatal(err)
	}
	key, running, end := enginetest.NewKey(), make(chan struct{}), make(chan struct{})
	for i, tables := range []idemsql.Option{sqlstore.WithSchema("apart"), sqlstore.WithTablePrefix("second_")} {
		if err := sqlstore.Migrate(t.Context(), db.Write, db.Dialect, tables.(sqlstore.Option)); err != nil {
			t.Fatal(err)
		}
		engine, err := idemsql.New(t.Context(), db.Write, db.Dialect, quiet, tables)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = engine.Close(context.Background()) })
		if i == 0 {
			go func() {
				_, _ = enginetest.Pay(engine, key, func() string {
					close(running)
					<-end
					return "one"
				})
			}()
			<-running
			var locks int
			if err := db.Write.QueryRow("SELECT count(*) FROM apart.idem_locks").Scan(&locks); err != nil || locks == 0 {
				t.Errorf("the schema of the records has %d locks, %v, want that of the payment", locks, err)
			}
		} else if res, err := enginetest.Pay(engine, key, func() string { return "two" }); err != nil || string(res.Response.Body) != "two" {
			t.Errorf("the key of another service: %q, %v, want that it pays", res.Response.Body, err)
		}
	}
	close(end)
}
