package sqllock_test

import (
	"context"
	"database/sql"

	"github.com/idemkeeper/idemkeeper/idem"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A service with one PostgreSQL, whose handlers call a bank. Records and locks are in the same database, and no transaction is open
// while the bank is called. The service closes the engine, then the locker, and then the database.
func Example() {
	start := func(ctx context.Context, db *sql.DB) (*idem.Engine, *sqllock.Locker, error) {
		store, err := sqlstore.New(ctx, db, dialect.PostgreSQL)
		if err != nil {
			return nil, nil, err
		}
		locker, err := sqllock.New(ctx, db, dialect.PostgreSQL)
		if err != nil {
			return nil, nil, err
		}
		engine, err := idem.New(locker, store, idem.WithCloser(store))
		return engine, locker, err
	}
	_ = start // it needs a server
	// Output:
}
