package ledger

import (
	"database/sql"
	"embed"
	"errors"
	"strconv"
	"strings"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgconn"
	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/idemkeeper/idemkeeper/fence"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

//go:embed schema
var schemas embed.FS

// dialect holds the differences between the databases.
type dialect struct {
	fences    fence.Dialect
	numbered  bool   // placeholders are $1, $2, …
	schema    string // file
	serial    string // type of an ascending primary key
	migrating string // runs before the schema, in the same transaction
	forUpdate string // ends a SELECT that locks its rows
	once      string // ends an INSERT that leaves an existing row as it is
	options   *sql.TxOptions
	retryable func(error) bool // the transaction was certainly rolled back
	session   *sessionLocks    // nil on SQLite, where a file is locked
}

// readCommitted lets each statement see what was committed during the wait of the
// one before it.
var readCommitted = &sql.TxOptions{Isolation: sql.LevelReadCommitted}

var dialects = map[sqlstore.Dialect]*dialect{
	sqlstore.SQLite(): {
		fences: fence.SQLite, schema: "schema/standard.sql", serial: "INTEGER PRIMARY KEY AUTOINCREMENT",
		once: "ON CONFLICT DO NOTHING", retryable: sqliteBusy,
	},
	sqlstore.PostgreSQL(): {
		fences: fence.PostgreSQL, numbered: true, schema: "schema/standard.sql", serial: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
		// Instances that start together create the schema one after the other.
		migrating: "SELECT pg_advisory_xact_lock(7021790541236021249)",
		forUpdate: " FOR UPDATE", once: "ON CONFLICT DO NOTHING",
		options: readCommitted, retryable: postgresConflict, session: postgresLocks,
	},
	sqlstore.MySQL(): {
		fences: fence.MySQL, schema: "schema/mysql.sql",
		forUpdate: " FOR UPDATE", once: "ON DUPLICATE KEY UPDATE id = id",
		options: readCommitted, retryable: mysqlConflict, session: mysqlLocks,
	},
}

// sql writes the placeholders of a statement.
func (d *dialect) sql(text string) string {
	for i := 1; d.numbered && strings.Contains(text, "?"); i++ {
		text = strings.Replace(text, "?", "$"+strconv.Itoa(i), 1)
	}
	return text
}

// statements are those of the schema.
func (d *dialect) statements() ([]string, error) {
	file, err := schemas.ReadFile(d.schema)
	if err != nil {
		return nil, err
	}
	var list []string
	if d.migrating != "" {
		list = append(list, d.migrating)
	}
	for s := range strings.SplitSeq(strings.ReplaceAll(string(file), "{serial}", d.serial), ";\n") {
		if strings.TrimSpace(s) != "" {
			list = append(list, s)
		}
	}
	return list, nil
}

// sqliteBusy is reported before the transaction has written, because transactions
// take the write lock when they begin.
func sqliteBusy(err error) bool {
	e, ok := errors.AsType[*sqlite.Error](err)
	return ok && (e.Code()&0xff == sqlite3.SQLITE_BUSY || e.Code()&0xff == sqlite3.SQLITE_LOCKED)
}

// postgresConflict reports a serialisation failure or a deadlock.
func postgresConflict(err error) bool {
	e, ok := errors.AsType[*pgconn.PgError](err)
	return ok && (e.Code == "40001" || e.Code == "40P01")
}

// mysqlConflict reports a deadlock, or that a row has changed since the snapshot.
func mysqlConflict(err error) bool {
	e, ok := errors.AsType[*mysqldriver.MySQLError](err)
	return ok && (e.Number == 1213 || e.Number == 1020)
}
