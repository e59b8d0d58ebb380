// Package dialect names the kinds of SQL database that Idemkeeper works with. The token store,
// joined mode and package fence take the same names:
//
//	engine, err := sqlstore.Join(ctx, db, dialect.PostgreSQL)
//	fences, err := fence.New(dialect.PostgreSQL)
//
// There are no others. A dialect says which errors mean that a statement did nothing, and which clock
// a record follows. Where it is wrong, an operation may run twice without an error, and only tests
// with real deadlocks, poolers and kills show that. So a new dialect is a change of this module, which
// CONTRIBUTING.md describes. A database that is to be used from outside needs a store of its own
// (driver.Store), which package idemtest checks.
package dialect

import "errors"

// Dialect is a kind of SQL database. The constants of this package are its values, and everything
// else is refused where it is used.
type Dialect string

// The dialects.
const (
	// PostgreSQL 13 or later, with every driver whose errors have a method SQLState, such as pgx
	// and lib/pq.
	PostgreSQL Dialect = "PostgreSQL"
	// MySQL 8 and MariaDB 10.6, and later versions of both, with github.com/go-sql-driver/mysql.
	MySQL Dialect = "MySQL"
	// SQLite 3.42 or later, with every driver whose errors have a method Code() int, such as
	// modernc.org/sqlite.
	SQLite Dialect = "SQLite"
)

// ErrWrong says that a database is not of the dialect that was named. The error around it names the
// right one.
var ErrWrong = errors.New("wrong dialect")
