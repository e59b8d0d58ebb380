package sqlstore

import (
	"context"
	"database/sql"
	"regexp"
	"slices"
	"strings"
)

// longestValue is the longest response in bytes, on a database without a lower limit. All of
// them hold more.
const longestValue = 256 << 20

// tableNames are the tables of the store, and those of package lock/sql. The migrations have their columns.
var tableNames = []string{"schema", "never", "records", "bindings", "domains", "decisions", "notes", "locks", "lock_domain"}

// viewName is the view of the records in readable types.
const viewName = "readable"

// names writes the names of tables into SQL.
type names struct {
	dialect *kind
	schema  string // "" is that of the connection
	prefix  string
}

// find completes the names by the schema of the tables.
func (n *names) find(ctx context.Context, q querier) (err error) {
	if n.schema == "" {
		n.schema, err = n.dialect.Home(ctx, q, n.prefix+"records")
	}
	return err
}

// table returns the full name of a table.
func (n names) table(name string) string { return n.dialect.Table(n.schema, n.prefix+name) }

var indexName = regexp.MustCompile(`\{name:(\w+)\}`)

// sql returns a statement for the database. In the text {records} is the name of a table, {name:x} is x with the prefix, and
// the rest is that of Dialect.Statement.
func (n names) sql(text string) string {
	var pairs []string
	for _, name := range append(slices.Clip(tableNames), viewName) {
		pairs = append(pairs, "{"+name+"}", n.table(name))
	}
	return n.dialect.Statement(indexName.ReplaceAllStringFunc(strings.NewReplacer(pairs...).Replace(text), func(m string) string {
		return n.dialect.Quoted(n.prefix + indexName.FindStringSubmatch(m)[1])
	}))
}

// querier is a pool, a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
	PrepareContext(ctx context.Context, query string) (*sql.Stmt, error)
}
