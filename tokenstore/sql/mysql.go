package sqlstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// The store also works if the data source name sets clientFoundRows, interpolateParams or parseTime.
var mysql = &kind{
	Dialect:        sqldialect.Of(dialect.MySQL),
	check:          mysqlCheck,
	users:          &users{lacking: mysqlLacking, grantee: mysqlGrantee},
	folder:         "mysql",
	beginMigration: []string{"DO GET_LOCK('idemkeeper migration', 60)"},
	endMigration:   endMySQLMigration,
	undoMigration:  endMySQLMigration,
	waitAtMost: func(d time.Duration) string {
		seconds := max((d+time.Second-1)/time.Second, 1)
		return fmt.Sprintf("SET @idem_lock_wait_timeout = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = %d", seconds)
	},
	join: newMySQLGuard,
}

// endMySQLMigration gives the session back as it was. Without waitAtMost before it, the variable is NULL.
var endMySQLMigration = []string{
	"SET SESSION lock_wait_timeout = coalesce(@idem_lock_wait_timeout, @@SESSION.lock_wait_timeout)",
	"DO RELEASE_LOCK('idemkeeper migration')",
}

// mysqlCheck refuses sessions in which a statement does not commit by itself, and servers that would refuse
// some of the statements later.
func mysqlCheck(ctx context.Context, s *Store) error {
	var autocommit, flush, packet, binlog, syncBinlog, rollback int
	var version, mode, format, completion string
	err := s.db.QueryRowContext(ctx, "SELECT @@autocommit, @@global.innodb_flush_log_at_trx_commit, @@global.max_allowed_packet, "+
		"@@global.log_bin, @@global.sync_binlog, version(), @@sql_mode, @@binlog_format, @@innodb_rollback_on_timeout, @@completion_type").Scan(
		&autocommit, &flush, &packet, &binlog, &syncBinlog, &version, &mode, &format, &rollback, &completion)
	if err != nil {
		return err
	}
	const otherColumns = 64 << 10
	s.longestResponse = min(longestValue, packet-otherColumns)
	s.mariaDB = strings.Contains(version, "MariaDB")
	s.returning = s.mariaDB
	s.compounds = s.mariaDB && !strings.Contains(mode, "ORACLE") // which has another syntax for them
	s.halfOnTimeout = rollback == 0
	if autocommit == 0 {
		return fmt.Errorf("%w: autocommit is off, so nothing would be committed: remove autocommit=0 from the data source name", errSetting)
	}
	switch {
	case binlog == 1 && format == "STATEMENT":
		// The server refuses each write at READ COMMITTED, which is what expiry and decisions use.
		return fmt.Errorf("%w: binlog_format is STATEMENT, so the server refuses to remove expired records (error 1665): set it to ROW or MIXED", errSetting)
	case completion != "NO_CHAIN":
		// A COMMIT begins another transaction, and what the next user of the connection writes would not be committed.
		return fmt.Errorf("%w: completion_type is %s: set it to NO_CHAIN for this connection", errSetting, completion)
	case strings.Contains(mode, "EMPTY_STRING_IS_NULL"):
		return fmt.Errorf("%w: sql_mode has EMPTY_STRING_IS_NULL, and a record has empty columns that are not NULL: remove it for this connection", errSetting)
	}
	if flush != 1 {
		s.log.WarnContext(ctx, "tokenstore/sql: innodb_flush_log_at_trx_commit is not 1: a crash of the machine loses acknowledged records", "value", flush)
	}
	if binlog == 1 && syncBinlog != 1 {
		s.log.WarnContext(ctx, "tokenstore/sql: sync_binlog is not 1: a crash of the machine loses acknowledged records", "value", syncBinlog)
	}
	return nil
}
