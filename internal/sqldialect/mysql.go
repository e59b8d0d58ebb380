package sqldialect

import (
	"crypto/sha256"
	"database/sql"
	"encoding/hex"
	"fmt"
	"reflect"
	"strings"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var mysql = &Dialect{
	Name: dialect.MySQL, quote: "`", Schemas: true, Longest: 64,
	home: "SELECT database()",

	// This depends on no time zone. Others may have left SET timestamp in the session, which stops its clock
	// for all functions but SYSDATE. A record of that time would be over at once, and a retry would run.
	Clock: "(" + mysqlBegan + " + IF(ABS(" + mysqlBehind + ") > 60000000, " + mysqlBehind + ", 0))",
	// Both times are local ones, so their difference is wrong where summer time begins or ends in between.
	Earliest: "(" + mysqlBegan + " + LEAST(" + mysqlBehind + ", 0))",
	Latest:   "(" + mysqlBegan + " + GREATEST(" + mysqlBehind + ", 0))",
	Indexed:  mysqlBegan,
	// INSERT IGNORE would store '' in place of NULL, and cut texts. ON DUPLICATE KEY UPDATE
	// would count rows in three ways.
	Once: "", Keep: func(column string) string { return "ON DUPLICATE KEY UPDATE " + column + " = " + column },
	ForUpdate: " FOR UPDATE", SkipLocked: " FOR UPDATE SKIP LOCKED",
	// The driver gives a session to its next user as it was left. MySQL does not tell of an open transaction, and
	// takes what MariaDB reads for a comment. The sum is out of range, whatever sql_mode is. Both servers find that before they
	// look at a row, unlike the failure of a subquery.
	Autocommit: func(value string) string {
		return "IF(@@autocommit /*M! AND NOT @@in_transaction */, " + value + ", 9223372036854775807 + 1)"
	},
	Isolation: sql.LevelReadCommitted, // at REPEATABLE READ a DELETE locks the gaps between keys, and new keys wait for it

	// The comparisons of its text take "a", "A" and "a " for the same.
	text: func(longest int) string { return fmt.Sprintf("VARBINARY(%d)", longest) }, longText: "MEDIUMBLOB",
	serial: "BIGINT NOT NULL AUTO_INCREMENT PRIMARY KEY", engine: " ENGINE = InnoDB", indexIn: true,

	ShowsBeforeDisk: true,
	Locks: &Locks{
		Place: "SELECT coalesce(database(), '')",
		Name: func(purpose string) any {
			sum := sha256.Sum256([]byte(purpose))
			return "idemkeeper " + hex.EncodeToString(sum[:16])
		},
		Take:   "SELECT GET_LOCK(?, 0) = 1",
		Look:   "SELECT IS_FREE_LOCK(?) = 1",
		Expire: "SET wait_timeout = 10",
	},

	Fault:  mysqlFault,
	Spoken: func(err error) bool { return MySQLNumber(err) != 0 },

	question: "SELECT version()",
	server: func(answer string) string {
		switch {
		case strings.Contains(answer, mariaDB):
			return mariaDB
		case '0' <= answer[0] && answer[0] <= '9':
			return "MySQL"
		}
		return ""
	},
	VersionQuestion: "SELECT version()",
	Oldest: func(answer string) (string, int, int) {
		if strings.Contains(answer, mariaDB) {
			return mariaDB, 10, 6
		}
		return "MySQL", 8, 0
	},
}

const (
	mariaDB = "MariaDB"
	// mysqlBegan is the time at which the statement began, or that of SET timestamp.
	mysqlBegan = "TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(6))"
	// mysqlBehind is how far that is behind the clock of the machine.
	mysqlBehind = "TIMESTAMPDIFF(MICROSECOND, NOW(6), SYSDATE(6))"
)

// mysqlFault reads the error number (MySQL, "Server Error Message Reference").
func mysqlFault(err error) Fault {
	switch MySQLNumber(err) {
	case 1062: // ER_DUP_ENTRY
		return Duplicate
	case 1213, 1020: // ER_LOCK_DEADLOCK, ER_CHECKREAD with innodb_snapshot_isolation
		return Conflict
	case 1146, 1054, 1049: // ER_NO_SUCH_TABLE, ER_BAD_FIELD_ERROR, ER_BAD_DB_ERROR
		return NoTable
	case 1060: // ER_DUP_FIELDNAME
		return There
	case 1290, 1836, 1792, // ER_OPTION_PREVENTS_STATEMENT, ER_READ_ONLY_MODE, ER_CANT_EXECUTE_IN_READ_ONLY_TRANSACTION
		1021, 1114: // ER_DISK_FULL, ER_RECORD_FILE_FULL
		return ReadOnly
	case 1153: // ER_NET_PACKET_TOO_LARGE
		return TooBig
	case 1142, 1143, 1044: // ER_TABLEACCESS_DENIED_ERROR, ER_COLUMNACCESS_DENIED_ERROR, ER_DBACCESS_DENIED_ERROR
		return Denied
	case 1690: // ER_DATA_OUT_OF_RANGE, of Autocommit
		return Uncommitted
	case 1205, 3572: // ER_LOCK_WAIT_TIMEOUT, ER_LOCK_NOWAIT
		return Busy
	}
	// The driver refuses a packet over its own limit before it sends it. This error has no
	// number.
	if err != nil && strings.Contains(err.Error(), "packet for query is too large") {
		return TooBig
	}
	return Other
}

// MySQLNumber returns the number in an error of a server of MySQL or MariaDB, and 0 for any other error. The
// driver's type has the number in a field and in no method, so this reads the field. An
// import of the driver would link it into services on other databases.
func MySQLNumber(err error) uint64 {
	if v := reflect.ValueOf(err); v.Kind() == reflect.Pointer && !v.IsNil() && v.Elem().Kind() == reflect.Struct && v.Elem().Type().Name() == "MySQLError" {
		if n := v.Elem().FieldByName("Number"); n.IsValid() && n.CanUint() {
			return n.Uint()
		}
	}
	switch e := err.(type) { //nolint:errorlint // this is the walk itself
	case interface{ Unwrap() error }:
		return MySQLNumber(e.Unwrap())
	case interface{ Unwrap() []error }:
		for _, below := range e.Unwrap() {
			if n := MySQLNumber(below); n != 0 {
				return n
			}
		}
	}
	return 0
}
