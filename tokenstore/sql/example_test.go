package sqlstore_test

import (
	"context"
	"database/sql"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A service on SQLite opens the file twice, with the driver modernc.org/sqlite, migrates it, and makes a store.
func Example() {
	newEngine := func(ctx context.Context, file string) (*idem.Engine, error) {
		forWriting, forReading := sqlstore.SQLiteDSN(file)
		write, err := sql.Open("sqlite", forWriting)
		if err != nil {
			return nil, err
		}
		write.SetMaxOpenConns(1)
		read, err := sql.Open("sqlite", forReading)
		if err != nil {
			return nil, err
		}
		if err := sqlstore.Migrate(ctx, write, dialect.SQLite); err != nil {
			return nil, err
		}
		store, err := sqlstore.New(ctx, write, dialect.SQLite, sqlstore.WithReadPool(read), sqlstore.WithSoleProcess())
		if err != nil {
			return nil, err
		}
		return idem.New(memorylock.New(), store, idem.WithCloser(store))
	}
	_ = newEngine // it needs the driver
	// Output:
}

// A service on PostgreSQL gets its engine in one line, and a handler pays in the joined transaction.
func ExampleJoin() {
	newEngine := func(ctx context.Context, db *sql.DB) (*idem.Engine, error) {
		return sqlstore.Join(ctx, db, dialect.PostgreSQL)
	}
	pay := func(ctx context.Context, cents int64) error {
		tx, err := sqlstore.Tx(ctx)
		if err != nil {
			return err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO payments (cents) VALUES ($1)", cents)
		return err // the middleware commits or rolls back
	}
	_, _ = newEngine, pay // they need a server
	// Output:
}
