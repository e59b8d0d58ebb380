package dialect_test

import (
	"context"
	"database/sql"

	"github.com/idemkeeper/idemkeeper/fence"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The token store and the table of fences take the same value.
func Example() {
	setup := func(ctx context.Context, db *sql.DB) (*sqlstore.Store, *fence.Table, error) {
		store, err := sqlstore.New(ctx, db, dialect.PostgreSQL)
		if err != nil {
			return nil, nil, err
		}
		fences, err := fence.New(dialect.PostgreSQL)
		return store, fences, err
	}
	_ = setup // it needs a server
	// Output:
}
