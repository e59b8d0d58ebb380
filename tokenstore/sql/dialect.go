package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Dialect is a kind of SQL database. Make it with [PostgreSQL], [MySQL] or [SQLite].
type Dialect struct{ d *dialect }

// String returns the name of the database.
func (d Dialect) String() string {
	if d.d == nil {
		return "no dialect"
	}
	return d.d.name
}

// dialect holds the differences between the databases.
type dialect struct {
	name     string // for errors
	folder   string // of its migrations
	numbered bool   // placeholders are $1, $2, …
	quote    string // around names
	schemas  bool   // a table may be in a schema other than that of the connection
	longest  int    // length of a name in bytes

	clock string // the time at which the statement began, in microseconds since 1970
	// indexed is clock where an index is to be searched with it, and a wrong time would do no harm. "" if that
	// is clock itself.
	indexed string
	once    string // ends an INSERT that does nothing if the primary key exists; "" if that is an error
	// home asks for the schema in which the connection finds the table of records, which is its parameter
	// if there is one.
	home string
	// durably wraps the result of a statement that writes, so that its commit is on the disk before it is
	// acknowledged, whatever others have left in the session. nil if no setting of a session changes that.
	durably func(result string) string
	// isolation of the few transactions that the store begins itself.
	isolation sql.IsolationLevel

	// fault classifies an error of a statement.
	fault func(error) fault
	// spoken reports whether an error is the answer of the database to a statement, which it did not run.
	spoken func(error) bool
	// check refuses a database whose settings could lose or mix up records.
	check func(ctx context.Context, s *Store) error
	// beginMigration and endMigration let one migration run at a time. PostgreSQL and SQLite
	// undo a migration that fails.
	beginMigration, endMigration, undoMigration []string
	// waitAtMost follows beginMigration. It bounds how long a statement waits for a table that others use.
	waitAtMost func(time.Duration) string
	// lacking returns the rights that the user of the database does not have, in the order of wanted. nil if
	// the database has no users.
	lacking func(ctx context.Context, q querier, n names, wanted []right) ([]right, error)
	// grantee quotes a user for GRANT.
	grantee func(user string) (string, error)
	// commentsStay keeps the comments of a statement, because the database stores its text.
	commentsStay bool
}

// longestValue is the longest response in bytes, on a database without a lower limit. All of
// them hold more.
const longestValue = 256 << 20

// fault is a class of errors that the store tells apart.
type fault uint8

const (
	faultOther     fault = iota // the statement may have taken effect
	faultDuplicate              // the primary key exists; nothing was done
	faultConflict               // another transaction came first; nothing was done
	faultNoTable                // a table or a column is missing; nothing was done
	faultReadOnly               // the database does not accept writes, or has no room; nothing was done
	faultTooBig                 // a value does not fit; nothing was done
	faultBusy                   // another transaction held a lock for too long; nothing was done
	faultThere                  // an earlier try of a migration has added the column; nothing was done
	faultDenied                 // the user of the database lacks a right; nothing was done
)

// tableNames are the tables of the store. The migrations have their columns.
var tableNames = []string{"schema", "never", "records", "bindings", "domains", "decisions", "notes"}

// viewName is the view of the records in readable types.
const viewName = "readable"

// names writes the names of tables into SQL.
type names struct {
	dialect *dialect
	schema  string // "" is that of the connection
	prefix  string
}

// find completes the names by the schema of the tables. Others who use the pool may leave another
// search_path or default database in a session, and records may then be in two places.
func (n *names) find(ctx context.Context, q querier) error {
	if n.schema != "" || n.dialect.home == "" {
		return nil
	}
	var args []any
	if n.dialect.numbered {
		args = append(args, n.prefix+"records")
	}
	var schema sql.NullString
	err := q.QueryRowContext(ctx, n.dialect.home, args...).Scan(&schema)
	if errors.Is(err, sql.ErrNoRows) || strings.Contains(schema.String, n.dialect.quote) {
		return nil
	}
	n.schema = schema.String
	return err
}

// table returns the full name of a table.
func (n names) table(name string) string {
	if n.schema == "" {
		return n.quoted(n.prefix + name)
	}
	return n.quoted(n.schema) + "." + n.quoted(n.prefix+name)
}

// quoted quotes a name. checkName has refused names with quotes.
func (n names) quoted(name string) string { return n.dialect.quote + name + n.dialect.quote }

var indexName = regexp.MustCompile(`\{name:(\w+)\}`)

// sql returns a statement for the database. In the text {records} is the name of a table,
// {name:x} is x with the prefix, {clock} is the time, {indexed} is that for an index, {once} ends an INSERT that does nothing
// if the key exists, {durable} ends a statement whose effect must not be lost, and ? is a parameter.
func (n names) sql(text string) string {
	durable := ""
	if n.dialect.durably != nil {
		durable = " RETURNING " + n.dialect.durably("1")
	}
	pairs := []string{"{clock}", n.dialect.clock, "{indexed}", cmp.Or(n.dialect.indexed, n.dialect.clock), "{once}", n.dialect.once, "{durable}", durable}
	for _, name := range append(slices.Clip(tableNames), viewName) {
		pairs = append(pairs, "{"+name+"}", n.table(name))
	}
	text = strings.NewReplacer(pairs...).Replace(text)
	text = indexName.ReplaceAllStringFunc(text, func(m string) string {
		return n.quoted(n.prefix + indexName.FindStringSubmatch(m)[1])
	})
	if !n.dialect.numbered {
		return text
	}
	var b strings.Builder
	for i, part := range strings.Split(text, "?") {
		if i > 0 {
			b.WriteString("$" + strconv.Itoa(i))
		}
		b.WriteString(part)
	}
	return b.String()
}

// querier is a pool, a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}
