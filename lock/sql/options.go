package sqllock

import (
	"cmp"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// DefaultTTL is the default of [WithTTL].
const DefaultTTL = 10 * time.Second

// minTTL leaves a heartbeat a third of a second, and the holder a tenth of one.
const minTTL = time.Second

// Option configures a [Locker]. A nil option is ignored.
type Option func(*config)

type config struct {
	kind           *kind
	schema, prefix string
	ttl            time.Duration
	heartbeats     *sql.DB
	unreplicated   func() uint64
	log            *slog.Logger
}

// ConfiguresEngine makes it an [idem.SetupOption]. It does nothing.
func (Option) ConfiguresEngine() {}

// WithSchema finds the tables in a schema of PostgreSQL or in a database of MySQL. By default they
// are where the connection looks first when the locker is made.
func WithSchema(name string) Option { return func(c *config) { c.schema = name } }

// WithTablePrefix sets what the names of the tables begin with. "idem_" by default. Lockers
// with different prefixes do not see each other's locks.
func WithTablePrefix(prefix string) Option { return func(c *config) { c.prefix = prefix } }

// WithTTL sets how long a lock outlives its holder. [DefaultTTL] by default, one second
// at least. It does not limit how long a lock can be held. Processes may use different
// values.
func WithTTL(d time.Duration) Option { return func(c *config) { c.ttl = d } }

// WithHeartbeatPool makes the locker renew its locks through another pool of the same database. One connection is
// enough. By default the locker keeps one connection of its pool for that. Behind a pooler, handlers whose
// transactions fill the pooler's own connections would delay heartbeats all the same, so give this pool
// another database entry or user of the pooler then, or a direct connection.
func WithHeartbeatPool(db *sql.DB) Option { return func(c *config) { c.heartbeats = db } }

// WithUnreplicated is for PostgreSQL with synchronous replication. count returns how many commits of the pools were cancelled so far while they
// waited for the standby (pgxstore.WatchStandby). The server calls them a success. A lock that is taken or renewed meanwhile counts as one without an answer.
func WithUnreplicated(count func() uint64) Option { return func(c *config) { c.unreplicated = count } }

// WithLogger sets the logger for warnings. [slog.Default] by default.
func WithLogger(log *slog.Logger) Option { return func(c *config) { c.log = log } }

func newConfig(db *sql.DB, d dialect.Dialect, opts []Option) (config, error) {
	c := config{prefix: "idem_", ttl: DefaultTTL, heartbeats: db}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	if c.log == nil {
		c.log = slog.Default()
	}
	if c.unreplicated == nil {
		c.unreplicated = func() uint64 { return 0 }
	}
	if db == nil || c.heartbeats == nil {
		return c, errors.New("lock/sql: no database")
	}
	var err error
	if c.kind, err = kindOf(d); err != nil {
		return c, err
	}
	if err := cmp.Or(c.kind.CheckSchema(c.schema), c.kind.CheckName("table prefix", c.prefix, longestName)); err != nil {
		return c, fmt.Errorf("lock/sql: %w", err)
	}
	switch {
	case c.ttl < minTTL:
		return c, fmt.Errorf("lock/sql: time to live %v is too short, it must be at least %v", c.ttl, minTTL)
	case c.heartbeats == db && db.Stats().MaxOpenConnections == 1:
		return c, errors.New("lock/sql: the pool has one connection, and the locker keeps one for its heartbeats: allow more, or use WithHeartbeatPool")
	}
	return c, nil
}

// longestName is the longest name of a table or an index without its prefix.
const longestName = len("locks_expires")
