package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// Joined is a [Store] for [idem.NewJoined]. Its records commit together with what a handler
// writes. It is safe for concurrent use. Make it with [Store.Joined].
//
// A request without a key, on a route where it is optional, has such a transaction without a record ([Joined.BeginWithoutKey]).
//
// # What a handler does
//
// The handler gets its transaction from [Tx], and does all of its reading and writing there. Do not
// call its Commit or Rollback, also not in a deferred call, and do not send such statements. The
// middleware ends the transaction after the handler has returned, by the handler's answer:
//
//	tx, err := sqlstore.Tx(ctx)
//	if err != nil { … }
//	_, err = tx.ExecContext(ctx, "INSERT INTO payments …")
//
// # What happens, in order
//
//	BeginJoined   a look at the record, a slot, a connection, BEGIN, and one statement that takes
//	              the key: it inserts the pending record, or updates the one that lets an attempt
//	              start
//	the handler   its statements
//	Commit        one statement that makes the record completed, then COMMIT
//	Rollback      first a look whether the handler has ended the transaction, then ROLLBACK
//	Probe         after a COMMIT without an answer: try to take the key, and roll that back
//
// With package pgxstore, BEGIN and the statement that takes the key share a round trip, and that statement also looks at the
// record, unless no transaction is free or it is SERIALIZABLE. The statement that completes the record and COMMIT share one too. The server skips
// COMMIT if the record is not there. The same is true with [Strict] on MariaDB, where the statement that begins makes no
// transaction if it finds such a record.
//
// The unique key decides between two attempts. Everything else that tells of a running attempt is
// a hint.
//
// # What keeps a handler from escaping
//
//	                      PostgreSQL                MySQL, MariaDB          SQLite
//	COMMIT by handler     refused: a deferred       detected: a savepoint   refused: a deferred
//	                      foreign key               has gone                foreign key
//	ROLLBACK by handler,  detected: the record is   detected as COMMIT, and refused: a commit hook
//	then more writes      not of this transaction   most writes are refused
//	DDL by handler        rolled back with it       detected as COMMIT      rolled back with it
//	a failed statement,   COMMIT is refused         after a deadlock        a lost transaction is
//	swallowed                                       detected as COMMIT      refused: a commit hook
//	with [Strict]         COMMIT is refused         COMMIT is refused       COMMIT is refused
//	the key, to others    an advisory lock, behind  a row lock, until the   this process alone owns
//	                      a pooler until ROLLBACK   transaction ends        the file
//
// The error of a refused COMMIT names the constraint idem_only_the_middleware_commits on PostgreSQL. So does
// that of SET CONSTRAINTS ALL IMMEDIATE, so name your own constraints there instead. What is
// detected is recorded as unknown. Until then an advisory lock holds the key. On MySQL a committed pending
// record counts as unknown by itself.
//
// # What is not covered
//
// A handler that sends ROLLBACK as a statement has to stop writing. Its later writes have no record
// in these cases, and a retry may write them again:
//
//   - On PostgreSQL they commit at once. The outcome is unknown then, unless the process ends before
//     the handler has returned, or the connection is lost within the same string of statements or after
//     the handler has begun another transaction. A handler may also leave that one with a failed statement, in
//     package pgxstore within the same string, and one of database/sql may call Commit or Rollback of the
//     sql.Tx too. The same holds after it has begun another transaction, if others lock the table for longer
//     than the settle time-out and no connection of the pool is free to ask the server. Drivers other than pgx do not
//     tell whether a transaction is open. With them the same holds if the connection is lost, or if
//     the handler leaves rows open or a goroutine in a statement.
//   - On PostgreSQL behind a pooler of transactions, or after the handler itself has unlocked the advisory
//     locks of its session, a duplicate may run and pay before that handler has answered. [Strict] and
//     package pgxstore refuse its later statements, except those in the same string.
//   - On MySQL and MariaDB the handler has to lose the transaction, by ROLLBACK or by a deadlock whose
//     error it ignores, and to commit another one by a statement of its own: after ROLLBACK that is
//     one of READ WRITE. The outcome is unknown then, and no retry runs, unless
//     the connection is lost too, as by COMMIT RELEASE, or the handler fails and has hidden the COMMIT. It hides that if it
//     begins a third transaction by AND CHAIN or READ WRITE and loses it to a deadlock, if it sends SET
//     TRANSACTION READ WRITE last, or if it turns autocommit on and off again. A duplicate on another
//     instance may also run and pay between the loss and the handler's answer, because nothing holds the key
//     then. [Strict] sends none of these statements after the loss.
//
// Without a key nothing is told as done or as not done that may be otherwise, with one exception. On MySQL and MariaDB a handler
// that commits by a statement, loses its connection with it, as by COMMIT RELEASE, and then answers with a failure is taken at its word.
//
// A unique column with the operation ID (OperationID of [idem.FromContext]) refuses the second
// payment in these cases too.
//
// # What the database has to offer
//
// The pool needs 2 connections or more, because a transaction holds one until its handler has
// returned, and one stays free for other calls. SQLite needs one pool for writing, one for reading,
// and one process that owns the file.
//
// The truth is the history of the current primary. An asynchronous fail-over loses records and
// payments together, acknowledged ones too. On PostgreSQL with synchronous replication a
// cancelled COMMIT may be visible before a standby has it. The server says so in a warning.
type Joined struct {
	*Store
	guard     guard
	connector Connector
	joined    joinedStatements
	looks     bool          // the guard sees the record of a key before BEGIN
	slots     chan struct{} // of shared
	shared    *slots        // nil is no limit
	pool      int           // the size of the pool, for which the slots were made
	isolation sql.IsolationLevel
	idle      time.Duration
	pooler    bool
	strict    bool // no handler goes on after it has ended its transaction, or after a failed statement
	longest   int  // response in bytes
}

var _ driver.JoinedStore = (*Joined)(nil)

// Facts about the handler's use of its transaction.
var (
	// ErrOtherStore says that the transaction of an execution is not of this package.
	ErrOtherStore = errors.New("tokenstore/sql: the execution belongs to another kind of joined store")
	// ErrHandlerEnded says that the handler called Commit or Rollback of its transaction and
	// then answered with success. The middleware commits.
	ErrHandlerEnded = errors.New("tokenstore/sql: the handler called Commit or Rollback of its transaction, which the middleware ends")
)

// Tx returns the transaction of the running handler. Its writes commit together with the record
// of the request. Use it with the context of the handler. Do not call its Commit or Rollback.
//
// The error wraps idem.ErrNoExecution, idem.ErrExecutionEnded, idem.ErrNotJoined or
// ErrOtherStore.
func Tx(ctx context.Context) (*sql.Tx, error) {
	s, err := SessionOf(ctx)
	if err != nil {
		return nil, err
	}
	if s := databaseSQL(s); s != nil {
		return s.tx, nil
	}
	return nil, ErrOtherStore
}

// SessionOf is for packages with a [Connector] of their own. It returns the session of the
// running handler. The error is that of [Tx].
func SessionOf(ctx context.Context) (Session, error) {
	joined, err := idem.JoinedTxOf(ctx)
	if err != nil {
		return nil, err
	}
	return sessionOf(joined)
}

// sessionOf notes that the handler has the transaction.
func sessionOf(joined driver.JoinedTx) (Session, error) {
	t, ok := joined.(*joinedTx)
	if !ok {
		return nil, ErrOtherStore
	}
	t.given.Store(true)
	return t.session, nil
}

// JoinedOption configures [Store.Joined]. A nil option is ignored.
type JoinedOption func(*Joined)

// WithIsolation sets the isolation level of the transactions. By default it is that of the
// database. With sql.LevelRepeatableRead or sql.LevelSerializable use
// [idem.WithConflictRetries].
func WithIsolation(level sql.IsolationLevel) JoinedOption {
	return func(j *Joined) { j.isolation = level }
}

// WithIdleLimit sets for how long PostgreSQL, MySQL and MariaDB keep a transaction in which
// nothing happens, for example because this process was suspended or its machine was lost. 1 min
// by default. A route with a longer HandlerTimeout gets that and 10 s more.
func WithIdleLimit(d time.Duration) JoinedOption { return func(j *Joined) { j.idle = d } }

// WithTransactionPooler says that a pooler such as PgBouncer gives each transaction another
// session of PostgreSQL. The store notices that by itself with pgx, and takes it for granted with
// other drivers. Without sessions of its own the store cannot keep a key after the handler has ended its
// transaction by a statement. A duplicate at that moment may then run beside it, unless [Strict] or package
// pgxstore keeps the handler from writing on.
func WithTransactionPooler() JoinedOption { return func(j *Joined) { j.pooler = true } }

// Joined returns the store for [idem.NewJoined].
//
// Joined transactions leave one connection of the pool to all other calls, so it refuses a pool
// of one. SQLite has one writer, so there the store needs a pool of its own for reading
// ([WithReadPool]) and the right to say that no other process uses the file ([WithSoleProcess]).
// Set the size of the pool before. If it has changed, BeginJoined fails.
func (s *Store) Joined(opts ...JoinedOption) (*Joined, error) {
	return s.JoinedOver(newSQLConnector(s.db, s.compounds), opts...)
}

// JoinedOver is Joined for packages with connections past database/sql. It is for PostgreSQL.
func (s *Store) JoinedOver(c Connector, opts ...JoinedOption) (*Joined, error) {
	j := &Joined{Store: s, connector: c, idle: time.Minute, longest: s.longestResponse, pool: c.Size()}
	for _, opt := range opts {
		if opt != nil {
			opt(j)
		}
	}
	_, ours := c.(sqlConnector)
	switch {
	case !ours && !s.dialect.joinsOthers:
		return nil, fmt.Errorf("tokenstore/sql: joined mode: sessions past database/sql are for PostgreSQL, not for %s", s.dialect.Name)
	case j.idle < time.Second:
		return nil, fmt.Errorf("tokenstore/sql: joined mode: an idle limit of %v, want 1s or more", j.idle)
	case s.dialect.File:
		j.shared = slotsOf(c.Pool(), 1)
	case j.pool == 1:
		return nil, fmt.Errorf("%w: joined mode needs a pool of 2 connections or more, because each transaction holds one until its handler has returned: see SetMaxOpenConns", errSetting)
	case j.pool > 1:
		j.shared = slotsOf(c.Pool(), j.pool-1)
	}
	if j.shared != nil {
		j.slots = j.shared.free
	}
	ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
	defer cancel()
	var err error
	j.strict = !ours || isStrict(ctx, j.db)
	if j.guard, err = s.dialect.join(ctx, j); err != nil {
		return nil, err
	}
	return j, nil
}

// Ping is that of [Store]. On SQLite a handler may have the one connection for writing for a while.
// Then Ping confirms that the database can be read.
func (j *Joined) Ping(ctx context.Context) error {
	if !j.dialect.File {
		return j.Store.Ping(ctx)
	}
	select {
	case j.slots <- struct{}{}:
		defer j.giveSlot()
		return j.Store.Ping(ctx)
	default:
		return j.names.check(ctx, j.read)
	}
}
