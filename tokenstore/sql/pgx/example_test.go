package pgxstore_test

import (
	"context"

	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

// A service makes its engine on a pool, and a handler pays in the joined transaction.
func ExampleJoined() {
	newEngine := func(ctx context.Context, pool *pgxpool.Pool) (*idem.Engine, error) {
		store, err := sqlstore.New(ctx, stdlib.OpenDBFromPool(pool), dialect.PostgreSQL)
		if err != nil {
			return nil, err
		}
		joined, err := pgxstore.Joined(store, pool)
		if err != nil {
			return nil, err
		}
		return idem.NewJoined(joined, idem.WithCloser(store))
	}
	pay := func(ctx context.Context, amount int64) error {
		tx, err := pgxstore.Tx(ctx)
		if err != nil {
			return err
		}
		_, err = tx.Exec(ctx, "INSERT INTO payments (amount) VALUES ($1)", amount)
		return err // the middleware commits or rolls back
	}
	_, _ = newEngine, pay // they need a server
}
