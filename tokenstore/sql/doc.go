// Package sqlstore keeps idempotency records in a SQL database: PostgreSQL 13, MySQL 8,
// MariaDB 10.6, SQLite 3.42, or later versions of these. The service opens the database with a
// driver of its own choice and names the dialect. This package links no driver.
//
//	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
//	err = sqlstore.Migrate(ctx, db, dialect.PostgreSQL) // or: idemctl store migrate
//	store, err := sqlstore.New(ctx, db, dialect.PostgreSQL)
//	defer store.Close()
//
// [Store.Joined] makes records commit together with the payments of the service, which [Join]
// does in one line. docs/sql.md says when to choose what.
//
// # The pool
//
// Give the pool as many idle connections as it may have open (SetMaxIdleConns). With the default
// of 2 the pool closes connections that the next calls have to open again.
//
// On MySQL and MariaDB, set interpolateParams=true in the data source name. Without it the
// driver of github.com/go-sql-driver prepares every statement that has arguments, uses it once
// and closes it. A joined payment of one statement then takes 15 round trips instead of 11.
//
// # What is guaranteed
//
// Every change of a record is one statement, and takes effect as a whole or not at all. It
// compares the rev of the row, which every write changes, with the rev of the row that the
// decision was made on. If another write came first, the change reads the row again and
// decides anew. No lock is held between statements, and the isolation level does not matter.
//
// Times are those of the database, read by the same statement as the record. The database
// holds the hashes of keys and tokens, and never the keys and tokens themselves. Errors do
// not show passwords.
//
// [New] refuses connections that would lose acknowledged records: without autocommit on
// MySQL, with synchronous_commit off on PostgreSQL, with synchronous below FULL or without
// write-ahead logging on SQLite. It warns of servers that do not sync to the disk.
//
// # What is not guaranteed
//
// The truth is what the current primary has. If a fail-over to an asynchronous replica loses
// the latest transactions, it loses records too, and their requests may run again. The store
// does not notice that, unlike the store in Redis. Use synchronous replication, or keep the
// records in the database of the money, which loses both together. Never give the store a
// connection that reads from a replica.
//
// Expiries follow the clock of the database server. If it is ahead of the process's clock by more
// than a minute, the clock of the process decides. Let the servers' clocks be slewed, not stepped.
//
// # SQLite
//
// Use modernc.org/sqlite, with the data source names of [SQLiteDSN], one pool with one
// connection for writing, and one for reading ([WithReadPool]). If no other process opens the
// file, [WithSoleProcess] lets an engine use the in-process lock. Joined mode needs both pools
// and that promise.
//
// # Tables
//
// The names begin with "idem_" unless [WithTablePrefix] says otherwise. The files in the folder
// migrations have the columns.
//
//	idem_records    a row for each key
//	idem_bindings   the fingerprints of keys on routes that call other systems
//	idem_domains    dead lock domains and the decisions about them
//	idem_decisions  people's decisions about attempts
//	idem_notes      since when services encrypt stored responses
//	idem_schema     the versions that the tables have had
//	idem_never      stays empty; keeps a pending record of a joined transaction from being
//	                committed (PostgreSQL and SQLite)
//
// [Migrate] makes and changes them. It is never called behind the service's back, because the
// service may run without the right to make tables. Migrate before new instances start. A
// build refuses tables that a newer build has migrated, and its running instances go on.
//
// A pending or unknown record never expires. Others are removed in the background when their
// time is over ([WithExpiry], [Store.Expire]), and their results before that. They count as
// expired from the very moment on.
//
// # Reading order
//
// store.go makes a store. change.go has the one way in which a record changes, begin.go and
// settle.go the methods that use it, and row.go the columns. Package idem/driver/rules
// decides what the methods do. Package internal/sqldialect has the SQL of each database, and kind.go what
// each does for this store alone. joined.go is joined mode, in order.
package sqlstore
