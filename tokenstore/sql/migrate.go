package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Facts about the tables, which [New], [Migrate] and [Store.Ping] report.
var (
	// ErrNotMigrated says that the tables are missing, or older than this build. Call
	// [Migrate], or run idemctl store migrate.
	ErrNotMigrated = errors.New("tokenstore/sql: the tables are missing or old: call Migrate, or run idemctl store migrate")
	// ErrNewerSchema says that a newer build has migrated the tables. This build does not know
	// what they mean now.
	ErrNewerSchema = errors.New("tokenstore/sql: a newer build has migrated the tables")
	// ErrTablesInUse says that [Migrate] gave up, because others use the tables. They have the version that
	// they had, and Migrate can be repeated.
	ErrTablesInUse = errors.New("tokenstore/sql: the tables are in use")
)

// SchemaVersion is the version of the tables that this build works with.
const SchemaVersion = 1

// mostMigrations bounds how often Migrate starts over because others use the tables.
const mostMigrations = 10

// Migrate creates the tables, or brings them to [SchemaVersion]. It does nothing if they have
// that version. It is safe to call from several processes at once, and to repeat after an
// error. The user of the database needs the right to create tables and views, which [New] does not
// need.
//
// Payments may go on meanwhile. If a transaction uses a table for longer than [WithMigrationWait], Migrate lets
// the payments behind it pass, and tries again 9 times.
//
// The error wraps ErrNewerSchema or ErrTablesInUse, or is one of the database.
func Migrate(ctx context.Context, db *sql.DB, d dialect.Dialect, opts ...Option) error {
	cfg, err := newConfig(db, d, opts)
	if err != nil {
		return err
	}
	n := cfg.names()
	if version, err := n.version(ctx, db); err != nil || version == SchemaVersion {
		return n.explain(ctx, db, err)
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("tokenstore/sql: migrate: %w", err)
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool, or is closed already
	var inUse error
	for tries := 1; ; tries++ {
		err := n.migrate(ctx, conn, cfg.tableWait)
		switch {
		case n.dialect.Fault(err) == sqldialect.Busy:
			inUse = fmt.Errorf("%w: a transaction, a backup or a vacuum has held one for longer than %v, at each of %d tries: end it, or let "+
				"the migration and all payments behind it wait longer (WithMigrationWait, --lock-timeout): %w", ErrTablesInUse, cfg.tableWait, tries, err)
		case err != nil && ctx.Err() != nil && inUse != nil:
			return inUse
		default:
			return err
		}
		if tries == mostMigrations {
			return inUse
		}
		select {
		case <-time.After(2 * cfg.tableWait): // payments go on
		case <-ctx.Done():
			return inUse
		}
	}
}

// migrate runs the missing migrations, while no other process does.
func (n names) migrate(ctx context.Context, conn *sql.Conn, wait time.Duration) (err error) {
	if err := execAll(ctx, conn, n.begin(wait)); err != nil {
		return errors.Join(fmt.Errorf("tokenstore/sql: migrate: %w", err), n.undo(ctx, conn))
	}
	if err := n.runMigrations(ctx, conn); err != nil {
		return errors.Join(err, n.undo(ctx, conn))
	}
	if err := execAll(ctx, conn, n.dialect.endMigration); err != nil {
		return errors.Join(fmt.Errorf("tokenstore/sql: migrate: %w", err), n.undo(ctx, conn))
	}
	return nil
}

// begin returns the statements before a migration. Its wait for another migration has no limit.
func (n names) begin(wait time.Duration) []string {
	if n.dialect.waitAtMost == nil {
		return n.dialect.beginMigration
	}
	return append(slices.Clone(n.dialect.beginMigration), n.dialect.waitAtMost(wait))
}

func (n names) runMigrations(ctx context.Context, conn *sql.Conn) error {
	have, err := n.lockedVersion(ctx, conn)
	if err != nil {
		return err
	}
	for version := have + 1; version <= SchemaVersion; version++ {
		statements, err := n.statements(version)
		if err != nil {
			return err
		}
		for _, s := range statements {
			if _, err := conn.ExecContext(ctx, s); err != nil && n.dialect.Fault(err) != sqldialect.There && n.dialect.Fault(err) != sqldialect.Duplicate {
				line, _, _ := strings.Cut(s, "\n")
				return fmt.Errorf("tokenstore/sql: migrate to version %d: %s: %w", version, line, err)
			}
		}
	}
	return nil
}

// lockedVersion is version within a migration. Some databases refuse everything in a
// transaction after an error, so the first question may not fail.
func (n names) lockedVersion(ctx context.Context, conn *sql.Conn) (int, error) {
	const savepoint = "idem_version"
	if n.dialect.FailsAsWhole {
		if err := execAll(ctx, conn, []string{"SAVEPOINT " + savepoint}); err != nil {
			return 0, fmt.Errorf("tokenstore/sql: migrate: %w", err)
		}
	}
	version, err := n.version(ctx, conn)
	if err == nil && version == 0 && n.dialect.FailsAsWhole {
		err = execAll(ctx, conn, []string{"ROLLBACK TO SAVEPOINT " + savepoint})
	}
	return version, err
}

// undo ends a migration that failed. If that fails too, it closes the connection, which
// has the same effect.
func (n names) undo(ctx context.Context, conn *sql.Conn) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 5*time.Second)
	defer cancel()
	if execAll(ctx, conn, n.dialect.undoMigration) != nil {
		_ = conn.Raw(func(any) error { return sqldriver.ErrBadConn }) // closes it
	}
	return nil
}

// version returns the version of the tables, and 0 without tables. The error wraps
// ErrNewerSchema, or driver.ErrUnavailable.
func (n names) version(ctx context.Context, q querier) (int, error) {
	var version int
	err := q.QueryRowContext(ctx, n.sql("SELECT coalesce(max(version), 0) FROM {schema}")).Scan(&version)
	switch {
	case err != nil && n.dialect.Fault(err) == sqldialect.NoTable:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("tokenstore/sql: schema version: %w: %w", driver.ErrUnavailable, err)
	case version > SchemaVersion:
		return version, fmt.Errorf("%w: to version %d, and this build knows %d", ErrNewerSchema, version, SchemaVersion)
	}
	return version, nil
}

// check fails if the tables do not have the version of this build.
func (n names) check(ctx context.Context, q querier) error {
	version, err := n.version(ctx, q)
	switch {
	case err != nil:
		return err
	case version == 0:
		return fmt.Errorf("%w: there is no table %s", ErrNotMigrated, n.table("schema"))
	case version < SchemaVersion:
		return fmt.Errorf("%w: they have version %d, want %d", ErrNotMigrated, version, SchemaVersion)
	}
	return nil
}

func execAll(ctx context.Context, conn *sql.Conn, statements []string) error {
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
