package sqldialect

import (
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"errors"
	"strings"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var postgres = &Dialect{
	Name: dialect.PostgreSQL, numbered: true, quote: `"`, Schemas: true, Longest: 63,
	// Without the schemas that are searched first in any case, because a handler may have a temporary table.
	home: "SELECT n.nspname FROM pg_catalog.pg_class c JOIN pg_catalog.pg_namespace n ON n.oid = c.relnamespace" +
		" WHERE c.relname = $1 AND c.relkind IN ('r', 'p') AND n.nspname = ANY (pg_catalog.current_schemas(false))" +
		" ORDER BY pg_catalog.array_position(pg_catalog.current_schemas(false), n.nspname) LIMIT 1",

	// now() is the time at which the transaction began, and is stale after a wait.
	Clock: postgresClock, Earliest: postgresClock, Latest: postgresClock, Indexed: postgresClock,
	// An INSERT that fails on a duplicate leaves a dead row in table and index.
	Once: conflictDoNothing, Keep: func(string) string { return conflictDoNothing },
	ForUpdate: " FOR UPDATE", SkipLocked: " FOR UPDATE SKIP LOCKED",
	Durably: func(result string) string {
		return "CASE WHEN pg_catalog.current_setting('synchronous_commit') <> 'off' THEN " + result +
			" WHEN pg_catalog.set_config('synchronous_commit', 'on', true) IS NOT NULL THEN " + result + " END"
	},
	Isolation: sql.LevelReadCommitted,

	text: func(int) string { return "TEXT" }, longText: "TEXT", serial: "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY",
	tableLock: "SELECT pg_advisory_xact_lock(%d)", // two sessions that make one table at once fail

	DeferredKeys: true, FailsAsWhole: true, Poolers: true,
	Locks: &Locks{
		Place: "SELECT coalesce(current_schema(), '')", // databases have locks of their own
		Name: func(purpose string) any {
			sum := sha256.Sum256([]byte(purpose))
			return int64(binary.BigEndian.Uint64(sum[:]))
		},
		Take:   "SELECT pg_try_advisory_lock($1)",
		Look:   "SELECT pg_try_advisory_lock_shared($1)",
		Expire: "SET idle_session_timeout = '10s'", // PostgreSQL 13 does not know it
	},

	Fault:  postgresFault,
	Spoken: func(err error) bool { return SQLState(err) != "" },

	question: "SELECT version()",
	server: func(answer string) string {
		if strings.HasPrefix(answer, "PostgreSQL") {
			return "PostgreSQL"
		}
		return ""
	},
	VersionQuestion: "SHOW server_version",
	Oldest:          func(string) (string, int, int) { return "PostgreSQL", 13, 0 },
}

const (
	postgresClock     = "(extract(epoch from pg_catalog.statement_timestamp())*1000000)::bigint"
	conflictDoNothing = "ON CONFLICT DO NOTHING"
)

// postgresFault reads the SQLSTATE (PostgreSQL, appendix A).
func postgresFault(err error) Fault {
	switch SQLState(err) {
	case "23505": // unique_violation
		return Duplicate
	case "40001", "40P01": // serialization_failure, deadlock_detected
		return Conflict
	case "42P01", "42703", "3F000": // undefined_table, undefined_column, invalid_schema_name
		return NoTable
	case "25006", "53100": // read_only_sql_transaction, disk_full
		return ReadOnly
	case "54000": // program_limit_exceeded
		return TooBig
	case "42501": // insufficient_privilege
		return Denied
	case "55P03": // lock_not_available
		return Busy
	}
	return Other
}

// SQLState returns the SQLSTATE of an error of PostgreSQL, or "".
func SQLState(err error) string {
	e, ok := errors.AsType[interface {
		error
		SQLState() string
	}](err)
	if !ok {
		return ""
	}
	return e.SQLState()
}
