// Package sqldialect has what differs between the SQL databases: their names, types, clauses, clocks
// and errors. The token store, joined mode, package fence, idemctl and the sample's ledger write their
// SQL with it, and compare no dialect themselves. Each database has a file here. The package links no
// driver.
//
// What a database does for the token store alone, such as the way in which joined mode guards a key,
// is in tokenstore/sql, because it works with the types of that package.
package sqldialect

import (
	"database/sql"
	"slices"

	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

// Dialect is the SQL of a database.
type Dialect struct {
	Name dialect.Dialect

	// Names and parameters.

	numbered bool   // placeholders are $1, $2, …
	quote    string // around names
	Schemas  bool   // a table may be in a schema other than that of the connection
	Longest  int    // length of a name in bytes
	// home asks for the schema in which the connection finds a table, which is its parameter if there
	// is one. "" without schemas.
	home string

	// Clauses.

	Clock string // the time at which the statement began, in microseconds since 1970
	// Earliest and Latest are Clock where a second matters. If others have left a session with a clock that was set, they are at most
	// and at least the time. Otherwise they are the time.
	Earliest, Latest string
	// Indexed is Clock where an index is to be searched with it, and a wrong time would do no harm.
	Indexed string
	Once    string // ends an INSERT that does nothing if the primary key exists; "" if that is an error
	// Keep ends an INSERT that leaves an existing row as it is. column is any of the table. The row is
	// locked as by ForUpdate then. A plain INSERT of MySQL would lock it for reading, and two
	// transactions that write it next would wait for each other.
	Keep       func(column string) string
	ForUpdate  string // ends a SELECT that locks its rows
	SkipLocked string // ends a SELECT that locks its rows and leaves out those of others; "" without locks of rows
	// Durably wraps the result of a statement that writes, so that its commit is on the disk before it is
	// acknowledged, whatever others have left in the session. nil if no setting of a session changes that.
	Durably func(result string) string
	// Autocommit wraps a value that a statement needs before it writes or locks a row. The statement fails with Uncommitted
	// if others have left the session so that it does not commit by itself. nil if no session can be left so.
	Autocommit func(value string) string
	// Isolation is for transactions of the library itself: each statement sees what was committed while
	// the one before it waited, and none locks the gaps between keys.
	Isolation sql.IsolationLevel

	// Tables.

	text      func(longest int) string // type of a text that is compared byte by byte
	longText  string
	serial    string // type of an ascending primary key
	engine    string // ends a CREATE TABLE
	indexIn   bool   // a CREATE TABLE may have lines that begin with INDEX
	tableLock string // takes a number, and waits for other transactions with that number; "" if CREATE needs none

	// Properties.

	File            bool // one process owns the file: one writer, no locks of rows, no users, no network
	DeferredKeys    bool // a foreign key may be checked by COMMIT
	ShowsBeforeDisk bool // others see a commit before it is on the disk
	FailsAsWhole    bool // a transaction takes no statement after one that has failed
	Poolers         bool // a pooler may give each transaction another session
	Locks           *Locks

	// Fault classifies an error of a statement.
	Fault func(error) Fault
	// Spoken reports whether an error is the answer of the database to a statement, which it did not run.
	Spoken func(error) bool

	// The server.

	question string                     // tells databases apart
	server   func(answer string) string // the name of the server, or "" if it is another database
	// VersionQuestion asks for the version. Oldest returns the name of a server with such an answer, and the
	// oldest version of it that the library supports.
	VersionQuestion string
	Oldest          func(answer string) (server string, major, minor int)
}

// all are the dialects.
var all = []*Dialect{postgres, mysql, sqlite}

// Of returns a dialect by its name, or nil.
func Of(name dialect.Dialect) *Dialect {
	for _, d := range all {
		if d.Name == name {
			return d
		}
	}
	return nil
}

// Fault is a class of errors of statements.
type Fault uint8

// The classes. After all but the first one nothing was done.
const (
	Other       Fault = iota // the statement may have taken effect
	Duplicate                // the primary key exists
	Conflict                 // another transaction came first
	NoTable                  // a table or a column is missing
	ReadOnly                 // the database does not accept writes, or has no room
	TooBig                   // a value does not fit
	Busy                     // another transaction held a lock for too long
	There                    // the column is there already
	Denied                   // the user of the database lacks a right
	Uncommitted              // the session would not commit it, see Autocommit
)

// Spoken reports whether an error is the answer of a database of any dialect.
func Spoken(err error) bool {
	return slices.ContainsFunc(all, func(d *Dialect) bool { return d.Spoken(err) })
}

// Locks are locks of a session of a server. They end with their connection, which has to be a direct one,
// without a pooler in between.
type Locks struct {
	Place string                   // asks for what tells two databases of one server apart, where locks are the server's
	Name  func(purpose string) any // the parameter of the other statements
	Take  string                   // true if the lock was free
	Look  string                   // true if no other session has the lock; it may take a share of it
	// Expire has the server end a session that says nothing for 10 s, such as that of a paused process
	// or a lost machine. Old servers refuse it.
	Expire string
}

// Retry reports whether the transaction of an error was rolled back for certain in favour of another one, and
// may be tried again. A writer of a file waits for the one before it when it begins.
func (d *Dialect) Retry(err error) bool {
	fault := d.Fault(err)
	return fault == Conflict || d.File && fault == Busy
}

// TxOptions are those of a transaction of the library itself.
func (d *Dialect) TxOptions() *sql.TxOptions { return &sql.TxOptions{Isolation: d.Isolation} }
