package sqlstore

import (
	"context"
	"database/sql"
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqlserver"
)

// MySQL is the dialect of MySQL 8 and MariaDB 10.6, and of later versions of both. Use it
// with github.com/go-sql-driver/mysql. The store also works if clientFoundRows,
// interpolateParams or parseTime is set. It refuses a session without autocommit, with the sql_mode
// EMPTY_STRING_IS_NULL, or with a binary log in the format STATEMENT.
func MySQL() Dialect { return Dialect{mysql} }

var mysql = &dialect{
	name: sqlserver.MySQL, folder: "mysql", quote: "`", schemas: true, longest: 64,
	// This depends on no time zone. Others may have left SET timestamp in the session, which stops its clock
	// for all functions but SYSDATE. A record of that time would be over at once, and a retry would run.
	clock:   "(" + mysqlBegan + " + IF(ABS(" + mysqlBehind + ") > 60000000, " + mysqlBehind + ", 0))",
	indexed: mysqlBegan,
	// INSERT IGNORE would store '' in place of NULL, and cut texts. ON DUPLICATE KEY UPDATE
	// would count rows in three ways.
	once: "",
	// At REPEATABLE READ a DELETE locks the gaps between keys, and new keys wait for it.
	home:           "SELECT database()",
	isolation:      sql.LevelReadCommitted,
	fault:          mysqlFault,
	spoken:         func(err error) bool { return mysqlNumber(err) != 0 },
	check:          mysqlCheck,
	beginMigration: []string{"DO GET_LOCK('idemkeeper migration', 60)"},
	endMigration:   endMySQLMigration,
	undoMigration:  endMySQLMigration,
	waitAtMost: func(d time.Duration) string {
		seconds := max((d+time.Second-1)/time.Second, 1)
		return fmt.Sprintf("SET @idem_lock_wait_timeout = @@SESSION.lock_wait_timeout, SESSION lock_wait_timeout = %d", seconds)
	},
	lacking: mysqlLacking,
	grantee: mysqlGrantee,
}

// endMySQLMigration gives the session back as it was. Without waitAtMost before it, the variable is NULL.
var endMySQLMigration = []string{
	"SET SESSION lock_wait_timeout = coalesce(@idem_lock_wait_timeout, @@SESSION.lock_wait_timeout)",
	"DO RELEASE_LOCK('idemkeeper migration')",
}

const (
	// mysqlBegan is the time at which the statement began, or that of SET timestamp.
	mysqlBegan = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	// mysqlBehind is how far that is behind the clock of the machine.
	mysqlBehind = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
)

// mysqlFault reads the error number (MySQL, "Server Error Message Reference").
func mysqlFault(err error) fault {
	switch mysqlNumber(err) {
	case 1062: // ER_DUP_ENTRY
		return faultDuplicate
	case 1213, 1020: // ER_LOCK_DEADLOCK, ER_CHECKREAD with innodb_snapshot_isolation
		return faultConflict
	case 1146, 1054, 1049: // ER_NO_SUCH_TABLE, ER_BAD_FIELD_ERROR, ER_BAD_DB_ERROR
		return faultNoTable
	case 1060: // ER_DUP_FIELDNAME
		return faultThere
	case 1290, 1836, 1792, // ER_OPTION_PREVENTS_STATEMENT, ER_READ_ONLY_MODE, ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
		1021, 1114: // ER_DISK_FULL, ER_RECORD_FILE_FULL
		return faultReadOnly
	case 1153: // ER_NET_PACKET_TOO_LARGE
		return faultTooBig
	case 1142, 1143, 1044: // ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR, ER_DBACCESS_DENIED_ERROR
		return faultDenied
	case 1205, 3572: // ER_LOCK_WAIT_TIMEOUT, ER_LOCK_NOWAIT
		return faultBusy
	}
	// The driver refuses a packet over its own limit before it sends it. This error has no
	// number.
	if err != nil && strings.Contains(err.Error(), "packet for query is too large") {
		return faultTooBig
	}
	return faultOther
}

// mysqlNumber returns the number in an error of the server, and 0 for any other error. The
// driver's type has the number in a field and in no method, so this reads the field. An
// import of the driver would link it into services on other databases.
func mysqlNumber(err error) uint64 {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() == reflect.Struct && v.Elem().Type().Name() == "MySQLError" {
		if n := v.Elem().FieldByName("Number"); n.IsValid() && n.CanUint() {
			return n.Uint()
		}
	}
	switch e := err.(type) { //nolint:errorlint // this is the walk itself
	case interface{ Unwrap() error }:
		return mysqlNumber(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, below := range e.Unwrap() {
			if n := mysqlNumber(below); n != 0 {
				return n
			}
		}
	}
	return 0
}

// mysqlCheck refuses sessions in which a statement does not commit by itself, and servers that would refuse
// some of the statements later.
func mysqlCheck(ctx context.Context, s *Store) error {
	var autocommit, flush, packet, binlog, syncBinlog, rollback int
	var version, mode, format string
	err := s.db.QueryRowContext(ctx, "SELECT @@autocommit, @@global.innodb_flush_log_at_trx_commit, @@global.max_allowed_packet, "+
		"@@global.log_bin, @@global.sync_binlog, version(), @@sql_mode, @@binlog_format, @@innodb_rollback_on_timeout").Scan(&autocommit, &flush, &packet, &binlog, &syncBinlog, &version, &mode, &format, &rollback)
	if err != nil {
		return err
	}
	const otherColumns = 64 << 10
	s.longestResponse = min(longestValue, packet-otherColumns)
	s.mariaDB = strings.Contains(version, "MariaDB")
	s.returning = s.mariaDB
	s.halfOnTimeout = rollback == 0
	if autocommit == 0 {
		return fmt.Errorf("%w: autocommit is off, so nothing would be committed: remove autocommit=0 from the data source name", errSetting)
	}
	switch {
	case binlog == 1 && format == "STATEMENT":
		// The server refuses each write at READ COMMITTED, which is what expiry and decisions use.
		return fmt.Errorf("%w: binlog_format is STATEMENT, so the server refuses to remove expired records (error 1665): set it to ROW or MIXED", errSetting)
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
