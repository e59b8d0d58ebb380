package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"embed"
	"errors"
	"fmt"
	"path"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Facts about the tables, which [New], [Migrate] and [Store.Ping] report.
var (
	// ErrNotMigrated says that the tables are missing, or older than this build. Call
	// [Migrate], or run idemctl store migrate.
	ErrNotMigrated = errors.New("tokenstore/sql: the tables are missing or old: call Migrate, or run idemctl store migrate")
	// ErrNewerSchema says that a newer build has migrated the tables. This build does not know
	// what they mean now.
	ErrNewerSchema = errors.New("tokenstore/sql: a newer build has migrated the tables")
)

// SchemaVersion is the version of the tables that this build works with.
const SchemaVersion = 2

//go:embed migrations
var migrationFiles embed.FS

// Migrate creates the tables, or brings them to [SchemaVersion]. It does nothing if they have
// that version. It is safe to call from several processes at once, and to repeat after an
// error. The user of the database needs the right to create tables, which [New] does not
// need.
//
// The error wraps ErrNewerSchema, or is one of the database.
func Migrate(ctx context.Context, db *sql.DB, d Dialect, opts ...Option) error {
	cfg, err := newConfig(db, d.d, opts)
	if err != nil {
		return err
	}
	n := names{d.d, cfg.schema, cfg.prefix}
	if version, err := n.version(ctx, db); err != nil || version == SchemaVersion {
		return err
	}
	conn, err := db.Conn(ctx)
	if err != nil {
		return fmt.Errorf("tokenstore/sql: migrate: %w", err)
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool, or is closed already
	return n.migrate(ctx, conn)
}

// migrate runs the missing migrations, while no other process does.
func (n names) migrate(ctx context.Context, conn *sql.Conn) (err error) {
	if err := execAll(ctx, conn, n.dialect.beginMigration); err != nil {
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
			if _, err := conn.ExecContext(ctx, s); err != nil && n.dialect.fault(err) != faultThere {
				return fmt.Errorf("tokenstore/sql: migrate to version %d: %w", version, err)
			}
		}
		// Last, because MySQL commits each statement by itself.
		note := n.sql("INSERT INTO {schema} (version, applied) VALUES (" + strconv.Itoa(version) + ", {clock})")
		if _, err := conn.ExecContext(ctx, note); err != nil && n.dialect.fault(err) != faultDuplicate {
			return fmt.Errorf("tokenstore/sql: migrate to version %d: %w", version, err)
		}
	}
	return nil
}

// lockedVersion is version within a migration. PostgreSQL refuses everything in a
// transaction after an error, so the first question may not fail.
func (n names) lockedVersion(ctx context.Context, conn *sql.Conn) (int, error) {
	const savepoint = "idem_version"
	if n.dialect == postgres {
		if err := execAll(ctx, conn, []string{"SAVEPOINT " + savepoint}); err != nil {
			return 0, fmt.Errorf("tokenstore/sql: migrate: %w", err)
		}
	}
	version, err := n.version(ctx, conn)
	if err == nil && version == 0 && n.dialect == postgres {
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
		_ = conn.Raw(func(any) error { return driver.ErrBadConn }) // closes it
	}
	return nil
}

// version returns the version of the tables, and 0 without tables. The error wraps
// ErrNewerSchema, or idem.ErrUnavailable.
func (n names) version(ctx context.Context, q querier) (int, error) {
	var version int
	err := q.QueryRowContext(ctx, n.sql("SELECT coalesce(max(version), 0) FROM {schema}")).Scan(&version)
	switch {
	case err != nil && n.dialect.fault(err) == faultNoTable:
		return 0, nil
	case err != nil:
		return 0, fmt.Errorf("tokenstore/sql: schema version: %w: %w", idem.ErrUnavailable, err)
	case version > SchemaVersion:
		return version, fmt.Errorf("%w: to version %d, and this build knows %d", ErrNewerSchema, version, SchemaVersion)
	}
	return version, nil
}

// check fails unless the tables have the version of this build.
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

// statements returns the statements of a migration.
func (n names) statements(version int) ([]string, error) {
	folder := path.Join("migrations", n.dialect.folder)
	entries, err := migrationFiles.ReadDir(folder)
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, _, _ := strings.Cut(e.Name(), "_")
		if i, err := strconv.Atoi(number); err != nil || i != version {
			continue
		}
		text, err := migrationFiles.ReadFile(path.Join(folder, e.Name()))
		if err != nil {
			return nil, err
		}
		return splitStatements(n.sql(string(text))), nil
	}
	return nil, fmt.Errorf("tokenstore/sql: no migration %d for %s", version, n.dialect.name)
}

// splitStatements splits a file at the semicolons that end a line, and leaves out comments.
// A migration has no parameters and no texts with either.
func splitStatements(text string) (list []string) {
	var b strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "--")
		line = strings.TrimRight(line, " \t\n")
		if line == "" {
			continue
		}
		end := strings.HasSuffix(line, ";")
		b.WriteString(strings.TrimSuffix(line, ";") + "\n")
		if end {
			list = append(list, strings.TrimSpace(b.String()))
			b.Reset()
		}
	}
	return list
}

func execAll(ctx context.Context, conn *sql.Conn, statements []string) error {
	for _, s := range statements {
		if _, err := conn.ExecContext(ctx, s); err != nil {
			return err
		}
	}
	return nil
}
