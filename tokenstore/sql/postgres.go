package sqlstore

import (
	"context"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var postgres = &kind{
	Dialect: sqldialect.Of(dialect.PostgreSQL),
	check:   postgresCheck,
	users:   &users{lacking: postgresLacking, grantee: postgresGrantee, ofSchema: "USAGE"},
	folder:  "postgres",
	// "idemkeep" in ASCII
	beginMigration: append([]string{"BEGIN"}, sqldialect.Of(dialect.PostgreSQL).Alone(7594874013116622192)...),
	endMigration:   []string{"COMMIT"},
	undoMigration:  []string{"ROLLBACK"},
	waitAtMost: func(d time.Duration) string {
		return fmt.Sprintf("SET LOCAL lock_timeout = '%dms'", max(d.Milliseconds(), 1)) // 0 is without limit
	},
	join:        newPostgresGuard,
	joinsOthers: true,
	takesLocks:  true,
}

// postgresCheck refuses a session whose commits are acknowledged before they are on the disk.
func postgresCheck(ctx context.Context, s *Store) error {
	s.returning, s.longestResponse = true, longestValue
	var synchronous, fsync string
	var now int64
	err := s.read.QueryRowContext(ctx, s.names.sql("SELECT current_setting('synchronous_commit'), current_setting('fsync'), coalesce(to_regclass($1::text)::oid::bigint, 0), {clock}"),
		s.names.table("records")).Scan(&synchronous, &fsync, &s.recordsTable, &now)
	if err == nil {
		s.clock.note(now)
	}
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
