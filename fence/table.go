package fence

import (
	"cmp"
	"context"
	"database/sql"
	_ "embed" // the table
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

//go:embed table.sql
var tableText string

// Table keeps the highest fence of each operation. It is safe for concurrent use. Make it with
// [New].
type Table struct {
	dialect                *sqldialect.Dialect
	name                   string // quoted, with its schema
	insert, lock, update   string
	look                   string // at the columns
	plainName, plainSchema string
}

// Option configures [New]. A nil option is ignored.
type Option func(*Table)

// WithName sets the name of the table. "idem_fences" by default.
func WithName(name string) Option { return func(t *Table) { t.plainName = name } }

// WithSchema keeps the table in an existing schema of PostgreSQL or database of MySQL. By default the table is where the
// connection looks first. Name the schema if others who use the pool may leave another search_path or default database in
// its sessions. A stale holder could be compared with the fences of another table otherwise.
func WithSchema(name string) Option { return func(t *Table) { t.plainSchema = name } }

// New returns a table of fences. It does not touch the database. The error is about a missing
// dialect or an unfit name.
func New(d dialect.Dialect, opts ...Option) (*Table, error) {
	t := &Table{dialect: sqldialect.Of(d), plainName: "idem_fences"}
	if t.dialect == nil {
		return nil, errors.New("fence: no dialect: use one of package tokenstore/sql/dialect, such as dialect.PostgreSQL")
	}
	for _, opt := range opts {
		if opt != nil {
			opt(t)
		}
	}
	if err := cmp.Or(t.dialect.CheckName("table name", t.plainName, 0), t.dialect.CheckSchema(t.plainSchema)); err != nil {
		return nil, fmt.Errorf("fence: %w", err)
	}
	t.name = t.dialect.Table(t.plainSchema, t.plainName)
	t.look = "SELECT operation_id, domain, token, past FROM " + t.name + " WHERE 1 = 0"
	t.insert = t.dialect.Bind("INSERT INTO " + t.name + " (operation_id, domain, token, past) VALUES (?, ?, ?, ?) " + t.dialect.Keep("operation_id"))
	t.lock = t.dialect.Bind("SELECT domain, token, past FROM " + t.name + " WHERE operation_id = ?" + t.dialect.ForUpdate)
	t.update = t.dialect.Bind("UPDATE " + t.name + " SET domain = ?, token = ?, past = ? WHERE operation_id = ?")
	return t, nil
}

// MustNew is New for a table whose options are constants. It panics with the error.
func MustNew(d dialect.Dialect, opts ...Option) *Table {
	t, err := New(d, opts...)
	if err != nil {
		panic(err)
	}
	return t
}

// Migrate makes the table. It does nothing if the table is there. It is safe to call from
// several processes at once. Only Migrate needs the right to create tables.
//
// The error wraps dialect.ErrWrong if the database is of another kind.
func (t *Table) Migrate(ctx context.Context, db *sql.DB) error {
	if err := t.dialect.Mismatch(ctx, db); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("fence: migrate: %w", err)
	}
	defer tx.Rollback()                //nolint:errcheck // it is over, or it has failed already
	const number = 7594306392197262947 // "idemfenc" in ASCII
	create := t.dialect.Tables(strings.ReplaceAll(tableText, "{table}", t.name))
	for _, statement := range slices.Concat(t.dialect.Alone(number), create, []string{t.look}) {
		if _, err := tx.ExecContext(ctx, statement); err != nil {
			return fmt.Errorf("fence: migrate %s: %w", t.name, err)
		}
	}
	if err := tx.Commit(); err != nil {
		return fmt.Errorf("fence: migrate %s: %w", t.name, err)
	}
	return nil
}

// Check returns an error if the database does not answer, or if the table is not there or has
// other columns. Call it at the start of a service that has no right to call Migrate. The error wraps
// dialect.ErrWrong if the database is of another kind.
func (t *Table) Check(ctx context.Context, db *sql.DB) error {
	if err := t.dialect.Mismatch(ctx, db); err != nil {
		return fmt.Errorf("fence: %w", err)
	}
	if _, err := db.ExecContext(ctx, t.look); err != nil {
		return fmt.Errorf("fence: table %s, which Migrate makes: %w", t.name, err)
	}
	return nil
}
