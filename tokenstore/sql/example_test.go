package sqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A service on SQLite opens the file twice, migrates it, and makes a store.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer os.RemoveAll(dir)
	forWriting, forReading := sqlstore.SQLiteDSN(filepath.Join(dir, "payments.db"))
	write, _ := sql.Open("sqlite", forWriting) // the driver is modernc.org/sqlite, and connects at its first use
	defer write.Close()
	write.SetMaxOpenConns(1)
	read, _ := sql.Open("sqlite", forReading)
	defer read.Close()

	if err := sqlstore.Migrate(ctx, write, dialect.SQLite); err != nil {
		fmt.Println(err)
		return
	}
	store, err := sqlstore.New(ctx, write, dialect.SQLite, sqlstore.WithReadPool(read), sqlstore.WithSoleProcess())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer store.Close()

	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer engine.Close(ctx)
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
