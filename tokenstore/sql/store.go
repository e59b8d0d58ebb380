package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var (
	_ driver.Store         = (*Store)(nil)
	_ driver.ReadOnlyStore = (*Store)(nil)
)

// Store is an [driver.Store] in a SQL database. It is safe for concurrent use. Make it with
// [New].
type Store struct {
	db      *sql.DB // for writing
	read    *sql.DB // for reading; the same one, or another pool of the same database
	dialect *kind
	names   names
	config  config
	log     *slog.Logger

	statements statements
	locking    lockingStatements // if the dialect takes locks
	clock      serverClock
	returning  bool // INSERT has RETURNING
	mariaDB    bool
	compounds  bool // the server takes compound statements outside of procedures

	halfOnTimeout bool // a lock time-out undoes its statement alone

	longestResponse int   // in bytes, packed
	recordsTable    int64 // PostgreSQL's number of the table of records

	stop context.CancelFunc // ends the removal of expired records
	done sync.WaitGroup
}

var (
	// ErrReadOnly says that a store made with [WithReadOnly] refused to write. It did nothing.
	ErrReadOnly = errors.New("tokenstore/sql: store is read-only")

	// errReadOnlyDatabase is the reason of driver.ErrUnavailable on a standby, and with a full disk.
	errReadOnlyDatabase = fmt.Errorf("%w: the database accepts no writes", driver.ErrNoWrites)
	// errLeftOpen is the reason of driver.ErrUnavailable in a session of the pool that would not commit.
	errLeftOpen = errors.New("others have left a session of the pool with autocommit off or a transaction open, so nothing would be committed")
	// errSetting is the reason why New refuses a database.
	errSetting = errors.New("tokenstore/sql: the connection is not fit to keep records")
)

// startLimit is how long New waits for the database. A server of another kind may accept the connection and say nothing.
const startLimit = 10 * time.Second

// New returns a store in a database whose tables [Migrate] has made. The caller closes the
// store, and then the database.
//
// The error wraps ErrNotMigrated, ErrNewerSchema, ErrRights with all the rights that are missing, dialect.ErrWrong, or
// driver.ErrUnavailable if the database cannot be reached. New refuses connections whose settings would lose records.
func New(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...Option) (*Store, error) {
	cfg, err := newConfig(db, d, opts)
	if err != nil {
		return nil, err
	}
	s := &Store{db: db, read: cfg.read, dialect: cfg.kind, names: cfg.names(), config: cfg, log: cfg.log}
	starting, started := context.WithTimeout(ctx, startLimit)
	defer started()
	if err := s.start(starting); err != nil {
		if ctx.Err() == nil && starting.Err() != nil {
			return nil, fmt.Errorf("tokenstore/sql: %w: no answer within %v; is that the address and the port of %s? %w", driver.ErrUnavailable, startLimit, s.dialect.Name, err)
		}
		if errors.Is(err, errSetting) || errors.Is(err, ErrNotMigrated) || errors.Is(err, ErrNewerSchema) || errors.Is(err, ErrRights) {
			return nil, err
		}
		if !errors.Is(err, driver.ErrUnavailable) {
			err = fmt.Errorf("tokenstore/sql: %w: %w", driver.ErrUnavailable, err)
		}
		return nil, s.names.explain(ctx, s.read, err)
	}
	stop, cancel := context.WithCancel(context.WithoutCancel(ctx))
	s.stop = cancel
	if cfg.expireEvery > 0 && !cfg.readOnly {
		s.done.Go(func() { s.expireInBackground(stop) })
	}
	return s, nil
}

// start asks the database what the store needs to know, and whether it is fit.
func (s *Store) start(ctx context.Context) error {
	schema := s.names.check(ctx, s.read)
	if schema != nil && s.dialect.Fault(schema) != sqldialect.Denied && !errors.Is(schema, ErrNotMigrated) {
		return schema
	}
	if err := s.names.find(ctx, s.read); err != nil {
		return err
	}
	// Without rights the tables look as if they were missing.
	if err := s.checkRights(ctx, s.config.needed()); err != nil && (schema == nil || errors.Is(err, ErrRights)) {
		return err
	}
	if schema != nil {
		return schema
	}
	s.statements = newStatements(s.names)
	if s.dialect.takesLocks {
		s.locking = newLockingStatements(s.names)
	}
	return s.dialect.check(ctx, s)
}

func (s *Store) checkRights(ctx context.Context, wanted []right) error {
	pool := s.db
	if s.config.readOnly {
		pool = s.read
	}
	return s.names.checkRights(ctx, pool, wanted)
}

// Close ends the removal of expired records and waits for it. It leaves the database open.
// The store itself works on. Close is safe to repeat, and returns nil.
func (s *Store) Close() error {
	s.stop()
	s.done.Wait()
	return nil
}

// Ping returns nil if the database answers, accepts writes, and has the tables of this build or of a
// later one, because instances go on while the next version is deployed. The error wraps driver.ErrUnavailable
// or ErrNotMigrated.
func (s *Store) Ping(ctx context.Context) error {
	if err := s.names.check(ctx, s.read); err != nil && !errors.Is(err, ErrNewerSchema) {
		return err
	}
	if s.config.readOnly {
		return nil
	}
	// This changes nothing, and a standby or a read-only session refuses it.
	_, err := s.db.ExecContext(ctx, s.statements.ping)
	return s.failed("ping", err)
}

// ReadOnly implements [driver.ReadOnlyStore].
func (s *Store) ReadOnly() bool { return s.config.readOnly }

// Visibility returns [driver.VisibilityShared], or driver.VisibilityProcess with
// [WithSoleProcess].
func (s *Store) Visibility() driver.Visibility { return s.config.visibility }
