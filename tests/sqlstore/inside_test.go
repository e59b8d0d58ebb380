package sqlstore_test

import (
	"database/sql"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/internal/test/inside"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func dbOf(s *sqlstore.Store) *sql.DB { return *inside.Field[*sql.DB](s, "db") }

func readOf(s *sqlstore.Store) *sql.DB { return *inside.Field[*sql.DB](s, "read") }

func dialectOf(s *sqlstore.Store) dialect.Dialect {
	return (*inside.Field[*sqldialect.Dialect](s, "dialect", "Dialect")).Name
}

// statementOf is a statement of a store by the name of its field.
func statementOf(s *sqlstore.Store, name string) *string {
	return inside.Field[string](s, "statements", name)
}

// removalOf is a statement that removes records, and removalClocks are its last parameters.
func removalOf(s *sqlstore.Store, name string) string {
	return *inside.Field[string](s, "statements", name, "text")
}

func removalClocks(s *sqlstore.Store, name string) []any {
	return slices.Repeat([]any{0}, *inside.Field[int](s, "statements", name, "times"))
}

var inBraces = regexp.MustCompile(`\{(schema|never|records|bindings|domains|decisions|notes|locks|lock_domain|readable)\}`)

// sqlFor writes a statement on the tables of a store. In the text {records} is the name of a table, and the rest is that of
// Dialect.Statement.
func sqlFor(d dialect.Dialect, schema, text string) string { return sqlWith(d, schema, "idem_", text) }

func sqlWith(d dialect.Dialect, schema, prefix, text string) string {
	of := sqldialect.Of(d)
	return of.Statement(inBraces.ReplaceAllStringFunc(text, func(name string) string {
		return of.Table(schema, prefix+strings.Trim(name, "{}"))
	}))
}

// sqlOf is sqlFor with the schema and the prefix of a store.
func sqlOf(s *sqlstore.Store, text string) string {
	return sqlWith(dialectOf(s), *inside.Field[string](s, "names", "schema"), *inside.Field[string](s, "names", "prefix"), text)
}

// What the store keeps to itself, as its documentation has it.
const (
	expiryBatch = 500  // records are removed at once
	keysRead    = 5000 // keys are read at once
	fewestRead  = 64   // rows are read at once, at least, for a list
	maxText     = 255
	maxReason   = 1024
	flushTime   = 15 * time.Minute       // after which a commit is on the disk
	idleMargin  = 10 * time.Second       // beyond the time of a handler
	lateBy      = 100 * time.Millisecond // that an estimate of the server's time may be behind
)

// columns of the table of records, without the key and the revision.
var columns = strings.Fields(`form state kind route fingerprint attempt domain fence nonce settlement repaired
	created started settled result_expires key_expires token_expires decided_by decided_reason
	result_ttl key_ttl response previous open_since expires`)

// What the errors say for which the store has no name.
const (
	errSetting             = "the connection is not fit to keep records"
	errReadOnlyDatabase    = "the database accepts no writes"
	errLeftOpen            = "others have left a session of the pool with autocommit off or a transaction open"
	errConnectionLost      = "the connection was lost before COMMIT: "
	errConnectionLostAtEnd = "the connection was lost before COMMIT or in it: "
)

func says(err error, what string) bool { return err != nil && strings.Contains(err.Error(), what) }

// isMariaDB tells MariaDB from MySQL.
func (s *service) isMariaDB() bool {
	return strings.Contains(get[string](s, s.pools.read, "SELECT version()"), "MariaDB")
}
