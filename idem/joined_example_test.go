package idem_test

import (
	"context"
	"database/sql"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The record and what the handler writes commit together. Package sqlstore has an example that runs.
func ExampleNewJoined() {
	newEngine := func(ctx context.Context, db *sql.DB) (*idem.Engine, error) {
		store, err := sqlstore.New(ctx, db, dialect.PostgreSQL)
		if err != nil {
			return nil, err
		}
		joined, err := store.Joined()
		if err != nil {
			return nil, err
		}
		return idem.NewJoined(joined, idem.WithCloser(store))
	}
	pay := func(ctx context.Context) (idem.Response, error) {
		tx, err := sqlstore.Tx(ctx)
		if err != nil {
			return idem.Response{}, err
		}
		_, err = tx.ExecContext(ctx, "INSERT INTO payments (cents) VALUES (1250)")
		return idem.Response{Body: []byte("pay_1")}, err // after an error both are rolled back
	}
	_, _ = newEngine, pay // they need a server
	// Output:
}
