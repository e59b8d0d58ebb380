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

// tableNames are the tables of the store. The migrations have their columns.
var tableNames = []string{"schema", "never", "records", "bindings", "domains", "decisions", "notes"}

// viewName is the view of the records in readable types.
const viewName = "readable"

// names writes the names of tables into SQL.
type names struct {
	dialect *kind
	schema  string // "" is that of the connection
	prefix  string
	next    *migrations // instead of those of this build; tests set it
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

var (
	indexName  = regexp.MustCompile(`\{name:(\w+)\}`)
	aloneValue = regexp.MustCompile(`\{alone:([^{}]+)\}`)
)

// sql returns a statement for the database. In the text {records} is the name of a table,
// {name:x} is x with the prefix, {clock} is the time, {indexed} is that for an index, {once} ends an INSERT that does nothing
// if the key exists, {durable} ends a statement whose effect must not be lost, and ? is a parameter. {alone} ends the conditions of
// an UPDATE that has to commit by itself, and {alone:x} is the value x in such an INSERT.
func (n names) sql(text string) string {
	durable, alone, value := "", "", "$1"
	if n.dialect.Autocommit != nil {
		alone, value = " AND "+n.dialect.Autocommit("TRUE"), n.dialect.Autocommit("$1")
	}
	if n.dialect.Durably != nil {
		durable = " RETURNING " + n.dialect.Durably("1")
	}
	pairs := []string{"{clock}", n.dialect.Clock, "{indexed}", n.dialect.Indexed, "{once}", n.dialect.Once, "{durable}", durable, "{alone}", alone}
	for _, name := range append(slices.Clip(tableNames), viewName) {
		pairs = append(pairs, "{"+name+"}", n.table(name))
	}
	text = aloneValue.ReplaceAllString(strings.NewReplacer(pairs...).Replace(text), value)
	return n.dialect.Bind(indexName.ReplaceAllStringFunc(text, func(m string) string {
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
