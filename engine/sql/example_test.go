package idemsql_test

import (
	"context"
	"database/sql"
	"time"

	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/idem"
	sqllock "github.com/idemkeeper/idemkeeper/lock/sql"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// A service with one PostgreSQL, whose handlers call a bank. Records and locks are in the schema "payments", and no transaction is open
// while the bank is called.
func Example() {
	start := func(ctx context.Context, db *sql.DB) (*idem.Engine, error) {
		return idemsql.New(ctx, db, dialect.PostgreSQL, sqlstore.WithSchema("payments"), sqllock.WithTTL(15*time.Second))
	}
	_ = start // it needs a server
	// Output:
}
