package sqldialect

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

var goodName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// CheckName refuses a name that Quoted could not quote, or that the database would cut after more bytes are
// put to it. what is the thing that is named, for the error.
func (d *Dialect) CheckName(what, name string, more int) error {
	if longest := d.Longest - more; !goodName.MatchString(name) || len(name) > longest {
		return fmt.Errorf("%s %q: want letters, digits and underscores, at most %d", what, name, longest)
	}
	return nil
}

// CheckSchema is CheckName for a schema, of which "" is that of the connection.
func (d *Dialect) CheckSchema(name string) error {
	switch {
	case name == "":
		return nil
	case !d.Schemas:
		return fmt.Errorf("%s has no schemas: leave out WithSchema", d.Name)
	}
	return d.CheckName("schema", name, 0)
}

// Quoted quotes a name.
func (d *Dialect) Quoted(name string) string { return d.quote + name + d.quote }

// Table returns the full name of a table. schema is "" for that of the connection.
func (d *Dialect) Table(schema, name string) string {
	if schema == "" {
		return d.Quoted(name)
	}
	return d.Quoted(schema) + "." + d.Quoted(name)
}

// Bind writes the placeholders of a statement, which are ? in the text.
func (d *Dialect) Bind(text string) string {
	if !d.numbered {
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

var aloneValue = regexp.MustCompile(`\{alone:([^{}]+)\}`)

// Statement returns a statement for the database. In the text {clock} is the time, {indexed} is that for an index, {once} ends an INSERT
// that does nothing if the key exists, {durable} ends a statement whose effect must not be lost, and ? is a parameter. {alone} ends
// the conditions of an UPDATE that has to commit by itself, and {alone:x} is the value x in such an INSERT.
func (d *Dialect) Statement(text string) string {
	durable, alone, value := "", "", "$1"
	if d.Autocommit != nil {
		alone, value = " AND "+d.Autocommit("TRUE"), d.Autocommit("$1")
	}
	if d.Durably != nil {
		durable = " RETURNING " + d.Durably("1")
	}
	text = strings.NewReplacer("{clock}", d.Clock, "{indexed}", d.Indexed, "{once}", d.Once, "{durable}", durable, "{alone}", alone).Replace(text)
	return d.Bind(aloneValue.ReplaceAllString(text, value))
}

// Home returns the schema in which a connection finds a table, and "" if that is not known. Others who use a
// pool may leave another search_path or default database in a session, and rows may then be in two places.
func (d *Dialect) Home(ctx context.Context, q interface {
	QueryRowContext(ctx context.Context, query string, args ...any) *sql.Row
}, table string) (string, error) {
	if d.home == "" {
		return "", nil
	}
	var args []any
	if d.numbered {
		args = append(args, table)
	}
	var schema sql.NullString
	err := q.QueryRowContext(ctx, d.home, args...).Scan(&schema)
	if errors.Is(err, sql.ErrNoRows) || strings.Contains(schema.String, d.quote) {
		return "", nil
	}
	return schema.String, err
}
