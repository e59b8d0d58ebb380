package sqllock

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/idemkeeper/idemkeeper/internal/leasing"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// kinds are the databases that several processes share. No other code compares dialects.
var kinds = map[dialect.Dialect]*kind{
	dialect.PostgreSQL: {Dialect: sqldialect.Of(dialect.PostgreSQL), returning: true, extend: extendPostgres, remove: removePostgres},
	dialect.MySQL:      {Dialect: sqldialect.Of(dialect.MySQL), extend: extendMySQL, remove: removeMySQL},
}

// kind is a database: its SQL, and what it does for locks alone.
type kind struct {
	*sqldialect.Dialect

	// returning says that INSERT and UPDATE return the row that they wrote. Otherwise the row is read again.
	returning bool
	// extend gives locks their full time to live again, in microseconds. It passes over a row that another transaction
	// has locked. The answers are nil, leasing.ErrGone or errSkipped.
	extend func(ctx context.Context, conn *sql.Conn, n names, locks []leasing.Lock, ttl int64) ([]error, error)
	// remove removes expired rows, of which these are the keys, whose fence is no higher than most.
	remove func(ctx context.Context, conn *sql.Conn, n names, keys [][]byte, most int64) error
}

// kindOf returns the database of a dialect.
func kindOf(d dialect.Dialect) (*kind, error) {
	if k := kinds[d]; k != nil {
		return k, nil
	}
	if s := sqldialect.Of(d); s != nil && s.File {
		return nil, fmt.Errorf("lock/sql: one process owns a database of %s: use lock/memory", d)
	}
	return nil, errors.New("lock/sql: no dialect: use one of package tokenstore/sql/dialect, such as dialect.PostgreSQL")
}
