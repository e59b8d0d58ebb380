package sqldialect

import (
	"errors"
	"strings"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

var sqlite = &Dialect{
	Name: dialect.SQLite, quote: `"`, Longest: 63,

	Clock: sqliteClock, Earliest: sqliteClock, Latest: sqliteClock, Indexed: sqliteClock,
	Once: conflictDoNothing, Keep: func(string) string { return conflictDoNothing },

	text: func(int) string { return "TEXT" }, longText: "TEXT", serial: "INTEGER PRIMARY KEY AUTOINCREMENT",

	File: true, DeferredKeys: true,

	Fault:  sqliteFault,
	Spoken: func(err error) bool { return SQLiteCode(err) != 0 },

	question:        "SELECT sqlite_version()",
	server:          func(string) string { return "SQLite" },
	VersionQuestion: "SELECT sqlite_version()",
	Oldest:          func(string) (string, int, int) { return "SQLite", 3, 42 },
}

// sqliteClock counts milliseconds.
const sqliteClock = "CAST(round(unixepoch('subsec') * 1000) AS INTEGER) * 1000"

// Primary result codes of SQLite.
const (
	SQLiteBusy       = 5
	SQLiteCannotOpen = 14
	SQLiteConstraint = 19
)

// sqliteFault reads the primary result code (SQLite, "Result and Error Codes").
func sqliteFault(err error) Fault {
	switch code := SQLiteCode(err); code & 0xff {
	case SQLiteBusy, 6: // SQLITE_LOCKED
		const snapshot = SQLiteBusy | 2<<8 // SQLITE_BUSY_SNAPSHOT
		if code == snapshot {
			return Conflict
		}
		return Busy
	case 1: // SQLITE_ERROR
		if text := err.Error(); strings.Contains(text, "no such table") || strings.Contains(text, "no such column") {
			return NoTable
		}
	case 8, 13: // SQLITE_READONLY, SQLITE_FULL
		return ReadOnly
	case 18: // SQLITE_TOOBIG
		return TooBig
	case SQLiteConstraint:
		if code == SQLiteConstraint|6<<8 || code == SQLiteConstraint|8<<8 { // PRIMARYKEY, UNIQUE
			return Duplicate
		}
	}
	return Other
}

// SQLiteCode returns the extended result code of an error of SQLite, or 0.
func SQLiteCode(err error) int {
	e, ok := errors.AsType[interface {
		error
		Code() int
	}](err)
	if !ok {
		return 0
	}
	return e.Code()
}
