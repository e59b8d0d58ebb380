package sqlstore

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Option configures [New] and [Migrate]. A nil option is ignored.
type Option func(*config)

type config struct {
	kind           *kind
	schema, prefix string
	read           *sql.DB
	readOnly       bool
	visibility     driver.Visibility
	expireEvery    time.Duration
	log            *slog.Logger
	tableWait      time.Duration
}

// WithSchema keeps the tables in a schema of PostgreSQL or in a database of MySQL. The schema
// has to exist. By default the tables are where the connection looks first. SQLite has no
// schemas.
func WithSchema(name string) Option { return func(c *config) { c.schema = name } }

// WithTablePrefix sets what the names of the tables begin with. "idem_" by default. Stores
// with different prefixes do not see each other's records.
func WithTablePrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithReadPool makes the store read through another pool of the same database. SQLite needs
// it, because its pool for writing has one connection. Never give it a pool of a replica. By
// default the store has one pool.
func WithReadPool(db *sql.DB) Option { return func(c *config) { c.read = db } }

// WithReadOnly makes a store without writes, for tools to inspect the records of services.
// Issue, Begin, Settle, Abort, RetireDomain, DeclareSealed and Expire fail with
// [ErrReadOnly].
func WithReadOnly() Option { return func(c *config) { c.readOnly = true } }

// WithSoleProcess says that no other process uses the tables, such as for a file of SQLite
// that this process has locked. The records then have driver.VisibilityProcess, and an engine
// combines the store with the in-process lock. Another instance of the service may have tables of its
// own. That there is none is said with [idem.WithSingleInstance].
func WithSoleProcess() Option { return func(c *config) { c.visibility = driver.VisibilityProcess } }

// WithExpiry sets how often the store removes records whose time is over, in the background.
// Every minute by default. If it fails, it logs a warning, and the table grows until that is mended. 0
// turns it off, and the caller calls [Store.Expire], which returns the error.
func WithExpiry(every time.Duration) Option { return func(c *config) { c.expireEvery = every } }

// WithMigrationWait sets how long a statement of [Migrate] waits for a table that others use. On
// PostgreSQL, MySQL and MariaDB every payment that comes meanwhile waits behind it. 1 s by default. MySQL
// and MariaDB round it up to whole seconds. It has to be longer than the transactions of handlers. [New]
// does not wait for tables and ignores it, so one list of options serves both.
func WithMigrationWait(most time.Duration) Option { return func(c *config) { c.tableWait = most } }

// WithLogger sets the logger for warnings. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

// longestTable is the longest name of a table or an index without its prefix.
const longestTable = len("bindings_expires")

func newConfig(db *sql.DB, d dialect.Dialect, opts []Option) (config, error) {
	if db == nil {
		return config{}, errors.New("tokenstore/sql: no database")
	}
	c, err := configOf(d, opts)
	if c.read == nil {
		c.read = db
	}
	return c, err
}

// TablesOf returns the schema and the table prefix of a store with some options, for locks that have to be next to its records.
func TablesOf(opts ...Option) (schema, prefix string) {
	c := apply(opts)
	return c.schema, c.prefix
}

func apply(opts []Option) config {
	c := config{prefix: "idem_", expireEvery: time.Minute, log: slog.Default(), tableWait: time.Second}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	return c
}

// configOf is a config without a database.
func configOf(d dialect.Dialect, opts []Option) (c config, err error) {
	c = apply(opts)
	if c.kind, err = kindOf(d); err != nil {
		return c, err
	}
	err = cmp.Or(c.kind.CheckSchema(c.schema), c.kind.CheckName("table prefix", c.prefix, longestTable))
	switch {
	case err != nil:
		return c, fmt.Errorf("tokenstore/sql: %w", err)
	case c.tableWait <= 0:
		return c, fmt.Errorf("tokenstore/sql: migration wait %v, want more than 0", c.tableWait)
	case c.expireEvery < 0:
		return c, fmt.Errorf("tokenstore/sql: expiry every %v, want 0 or more", c.expireEvery)
	}
	return c, nil
}

// names are those of the tables.
func (c *config) names() names { return names{c.kind, c.schema, c.prefix} }
