package fence

import (
	"context"
	"database/sql"
	"embed"
	"errors"
	"fmt"
	"regexp"
	"strings"

	"github.com/idemkeeper/idemkeeper/internal/sqlserver"
)

// Dialect is a kind of SQL database.
type Dialect uint8

// The dialects.
const (
	PostgreSQL Dialect = iota + 1
	MySQL              // and MariaDB
	SQLite
)

// String returns the name of the database.
func (d Dialect) String() string {
	if s, ok := dialects[d]; ok {
		return s.name
	}
	return "no dialect"
}

// syntax is what differs between the databases.
type syntax struct {
	name     string
	file     string // of the table
	quote    string // around names
	numbered bool   // placeholders are $1, $2, …
	schemas  bool
	longest  int // length of a name in bytes
	// insertOnce ends an INSERT and leaves an existing row as it is. On MySQL it locks the row
	// for writing, as the SELECT after it does. A plain INSERT would lock the row for reading,
	// and two holders would wait for each other.
	insertOnce string
	lockRow    string // ends a SELECT and locks its row
	beforeDDL  string // lets one Migrate run at a time
}

var dialects = map[Dialect]syntax{
	PostgreSQL: {name: sqlserver.PostgreSQL, file: "standard.sql", quote: `"`, numbered: true, schemas: true, longest: 63,
		insertOnce: "ON CONFLICT DO NOTHING", lockRow: " FOR UPDATE",
		// "idemfenc" in ASCII. Programs that share a database share its advisory locks.
		beforeDDL: "SELECT pg_advisory_xact_lock(7594306392197262947)"},
	MySQL: {name: sqlserver.MySQL, file: "mysql.sql", quote: "`", schemas: true, longest: 64,
		insertOnce: "ON DUPLICATE KEY UPDATE operation_id = operation_id", lockRow: " FOR UPDATE"},
	SQLite: {name: sqlserver.SQLite, file: "standard.sql", quote: `"`, longest: 63,
		insertOnce: "ON CONFLICT DO NOTHING"},
}

//go:embed tables
var tables embed.FS

// Table keeps the highest fence of each operation. It is safe for concurrent use. Make it with
// [New].
type Table struct {
	dialect                Dialect
	name                   string // quoted, with its schema
	beforeDDL, create      string // statements
	insert, lock, update   string
	look                   string // at the columns
	plainName, plainSchema string
}

// ErrWrongDialect says that the dialect is not that of the database.
var ErrWrongDialect = errors.New("fence: wrong dialect")

// Option configures [New]. A nil option is ignored.
type Option func(*Table)

// WithName sets the name of the table. "idem_fences" by default.
func WithName(name string) Option { return func(t *Table) { t.plainName = name } }

// WithSchema keeps the table in an existing schema of PostgreSQL or database of MySQL. By default the table is where the connection looks first.
func WithSchema(name string) Option { return func(t *Table) { t.plainSchema = name } }

var goodName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// New returns a table of fences. It does not touch the database. The error is about a missing
// dialect or an unfit name.
func New(d Dialect, opts ...Option) (*Table, error) {
	s, ok := dialects[d]
	if !ok {
		return nil, errors.New("fence: no dialect: use PostgreSQL, MySQL or SQLite")
	}
	t := &Table{dialect: d, plainName: "idem_fences"}
	for _, opt := range opts {
		if opt != nil {
			opt(t)
		}
	}
	switch {
	case !goodName.MatchString(t.plainName) || len(t.plainName) > s.longest:
		return nil, fmt.Errorf("fence: table name %q: want letters, digits and underscores, at most %d", t.plainName, s.longest)
	case t.plainSchema != "" && !s.schemas:
		return nil, fmt.Errorf("fence: %s has no schemas: leave out WithSchema", s.name)
	case t.plainSchema != "" && (!goodName.MatchString(t.plainSchema) || len(t.plainSchema) > s.longest):
		return nil, fmt.Errorf("fence: schema %q: want letters, digits and underscores, at most %d", t.plainSchema, s.longest)
	}
	t.name = s.quote + t.plainName + s.quote
	if t.plainSchema != "" {
		t.name = s.quote + t.plainSchema + s.quote + "." + t.name
	}
	file, err := tables.ReadFile("tables/" + s.file)
	if err != nil {
		return nil, err
	}
	t.create, t.beforeDDL = strings.ReplaceAll(string(file), "{table}", t.name), s.beforeDDL
	t.look = "SELECT operation_id, domain, token, past FROM " + t.name + " WHERE 1 = 0"
	t.insert = s.sql("INSERT INTO " + t.name + " (operation_id, domain, token, past) VALUES (?, ?, ?, ?) " + s.insertOnce)
	t.lock = s.sql("SELECT domain, token, past FROM " + t.name + " WHERE operation_id = ?" + s.lockRow)
	t.update = s.sql("UPDATE " + t.name + " SET domain = ?, token = ?, past = ? WHERE operation_id = ?")
	return t, nil
}

// sql writes the placeholders of a statement.
func (s syntax) sql(text string) string {
	for i := 1; s.numbered && strings.Contains(text, "?"); i++ {
		text = strings.Replace(text, "?", fmt.Sprintf("$%d", i), 1)
	}
	return text
}

// Migrate makes the table. It does nothing if the table is there. It is safe to call from
// several processes at once. Only Migrate needs the right to create tables.
//
// The error wraps ErrWrongDialect if the database is of another kind.
func (t *Table) Migrate(ctx context.Context, db *sql.DB) error {
	if err := t.recognise(ctx, db); err != nil {
		return err
	}
	tx, err := db.BeginTx(ctx, nil)
	if err != nil {
		return fmt.Errorf("fence: migrate: %w", err)
	}
	defer tx.Rollback() //nolint:errcheck // it is over, or it has failed already
	for _, statement := range []string{t.beforeDDL, t.create, t.look} {
		if statement == "" {
			continue
		}
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
// ErrWrongDialect if the database is of another kind.
func (t *Table) Check(ctx context.Context, db *sql.DB) error {
	if err := t.recognise(ctx, db); err != nil {
		return err
	}
	if _, err := db.ExecContext(ctx, t.look); err != nil {
		return fmt.Errorf("fence: table %s, which Migrate makes: %w", t.name, err)
	}
	return nil
}

// recognise returns an error if the database is known to have another dialect. Some statements work in several
// dialects, and locks do not.
func (t *Table) recognise(ctx context.Context, db *sql.DB) error {
	if server, use := sqlserver.Of(ctx, db); use != "" && use != t.dialect.String() {
		return fmt.Errorf("%w: it is %s, and the database is %s: use fence.%s", ErrWrongDialect, t.dialect, server, use)
	}
	return nil
}
