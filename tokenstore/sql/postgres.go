package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqlserver"
)

// PostgreSQL is the dialect of PostgreSQL 13 or later. It works with every driver whose
// errors have a method SQLState, such as pgx and lib/pq.
func PostgreSQL() Dialect { return Dialect{postgres} }

var postgres = &dialect{
	name: sqlserver.PostgreSQL, folder: "postgres", numbered: true, quote: `"`, schemas: true, longest: 63,
	// now() is the time at which the transaction began, and is stale after a wait.
	clock: "(extract(epoch from pg_catalog.statement_timestamp())*1000000)::bigint",
	// An INSERT that fails on a duplicate leaves a dead row in table and index.
	once: "ON CONFLICT DO NOTHING",
	// Without the schemas that are searched first in any case, because a handler may have a temporary table.
	home: "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace" +
		" WHERE c.relname = $1 AND c.relkind IN ('r', 'p') AND n.nspname = ANY (pg_catalog.current_schemas(false))" +
		" ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), n.nspname) LIMIT 1",
	durably: func(result string) string {
		return "CASE WHEN pg_catalog.current_setting('synchronous_commit') <> 'off' THEN " + result +
			" WHEN pg_catalog.set_config('synchronous_commit', 'on', true) IS NOT NULL THEN " + result + " END"
	},
	isolation: sql.LevelReadCommitted,
	fault:     postgresFault,
	spoken:    func(err error) bool { return sqlState(err) != "" },
	check:     postgresCheck,
	beginMigration: []string{"BEGIN",
		// "idemkeep" in ASCII. Programs that share a database share its advisory locks.
		"SELECT pg_advisory_xact_lock(7594874013116622192)"},
	endMigration:  []string{"COMMIT"},
	undoMigration: []string{"ROLLBACK"},
	waitAtMost: func(d time.Duration) string {
		return fmt.Sprintf("SET LOCAL lock_timeout = '%dms'", max(d.Milliseconds(), 1)) // 0 is without limit
	},
	lacking: postgresLacking,
	grantee: postgresGrantee,
}

// postgresFault reads the SQLSTATE (PostgreSQL, appendix A).
func postgresFault(err error) fault {
	switch sqlState(err) {
	case "23505": // unique_violation
		return faultDuplicate
	case "40001", "40P01": // serialization_failure, deadlock_detected
		return faultConflict
	case "42P01", "42703", "3F000": // undefined_table, undefined_column, invalid_schema_name
		return faultNoTable
	case "25006", "53100": // read_only_sql_transaction, disk_full
		return faultReadOnly
	case "54000": // program_limit_exceeded
		return faultTooBig
	case "42501": // insufficient_privilege
		return faultDenied
	case "55P03": // lock_not_available
		return faultBusy
	}
	return faultOther
}

// postgresCheck refuses a session whose commits are acknowledged before they are on the disk.
func postgresCheck(ctx context.Context, s *Store) error {
	s.returning, s.longestResponse = true, longestValue
	var synchronous, fsync string
	err := s.read.QueryRowContext(ctx, "SELECT current_setting('synchronous_commit'), current_setting('fsync'), coalesce(to_regclass($1::text)::oid::bigint, 0)",
		s.names.table("records")).Scan(&synchronous, &fsync, &s.recordsTable)
	switch {
	case err != nil:
		return err
	case synchronous == "off" && !s.config.readOnly:
		return fmt.Errorf("%w: synchronous_commit is off: a crash of the server loses acknowledged records, and their requests run again", errSetting)
	case fsync != "on":
		s.log.WarnContext(ctx, "tokenstore/sql: fsync is off: a crash of the machine loses acknowledged records")
	}
	return nil
}
