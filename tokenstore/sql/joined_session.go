package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/idemkeeper/idemkeeper/internal/sqlpipeline"
)

// Session is a connection to PostgreSQL for one joined transaction. Only packages for drivers
// past database/sql need it, such as tokenstore/sql/pgx. It is not safe for concurrent use.
//
// The methods are called in this order: Begin, QueryRow and Status any number of times, Commit,
// Rollback, Exec, Close. After Begin each of the others may be left out, and Rollback may follow an
// error of Commit. If the handler has ended the transaction by the methods of its type, Commit
// and Rollback return sql.ErrTxDone and do nothing, and QueryRow may return that too. The other
// errors are those of the driver, and have the method SQLState if the server sent them.
//
// After the handler has returned, a goroutine of it may still use the connection. Then each method
// but PID, Interrupt and Close waits until ctx ends, at the latest.
type Session interface {
	// PID is the number of the session as the server gave it to this client, or 0 if the driver
	// does not tell. Behind a pooler it differs from pg_backend_pid().
	PID() uint32
	// Begin opens the transaction. It outlives ctx.
	Begin(ctx context.Context, level sql.IsolationLevel) error
	// Status takes no round trip. The error wraps ErrInUse if the handler still has the connection.
	Status(ctx context.Context) (TxStatus, error)
	// Interrupt has the server cancel what a goroutine of the handler still runs, if the driver can.
	// The connection does not go back to the pool then.
	Interrupt()
	// QueryRow runs a statement in the transaction and reads at most one row. The error is
	// sql.ErrNoRows if there is none.
	QueryRow(ctx context.Context, statement string, args []any, to ...any) error
	// Commit and Rollback end the transaction. They return when ctx ends, at the latest.
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
	// Exec runs a statement after the transaction.
	Exec(ctx context.Context, statement string, args ...any) error
	// Close gives the connection back to its pool, or closes it if it is not fit for others. It
	// does not wait, and calls closed once the pool has the connection.
	Close(broken bool, closed func())
}

// PipelinedSession is a [Session] that sends a statement together with BEGIN or COMMIT, in one round trip each.
type PipelinedSession interface {
	Session
	// BeginRow takes the place of Begin and the first QueryRow. If the statement fails, the transaction may be open.
	BeginRow(ctx context.Context, level sql.IsolationLevel, statement string, args []any, to ...any) error
	// RowCommit takes the place of the last QueryRow and Commit. The server skips COMMIT if the statement fails.
	// skipped says that it has done so for certain. Otherwise an error leaves open whether the transaction was
	// committed, as one of Commit does.
	RowCommit(ctx context.Context, statement string, args []any, to ...any) (skipped bool, err error)
}

// ErrInUse says that the handler has returned and still uses the connection of its transaction.
var ErrInUse = errors.New("tokenstore/sql: the handler has returned and still uses its transaction")

// Both say what the handler still does, and wrap [ErrInUse].
var (
	ErrRowsOpen      = fmt.Errorf("%w: it has left rows open, which have to be closed before it returns", ErrInUse)
	ErrStatementOpen = fmt.Errorf("%w: a goroutine is in a statement, which has to end before the handler returns", ErrInUse)
)

// Connector opens sessions. It is safe for concurrent use.
type Connector interface {
	// Connect waits for a connection until ctx ends.
	Connect(ctx context.Context) (Session, error)
	// Pool is a pointer to the pool. Stores with the same one share its connections.
	Pool() any
	// Size is how many connections the pool has at most, and 0 without a limit.
	Size() int
	// Pipelined reports whether the sessions are of type [PipelinedSession], or look and begin in one round trip in another way.
	Pipelined() bool
}

// sqlConnector opens sessions of database/sql.
type sqlConnector struct {
	db        *sql.DB
	compounds bool         // the server takes compound statements
	pipelined *atomic.Bool // a connection was one that needs no round trip of its own for BEGIN
}

func newSQLConnector(db *sql.DB, compounds bool) sqlConnector {
	return sqlConnector{db, compounds, new(atomic.Bool)}
}

func (c sqlConnector) Pool() any { return c.db }

func (c sqlConnector) Size() int { return c.db.Stats().MaxOpenConnections }

func (c sqlConnector) Pipelined() bool { return c.pipelined.Load() }

func (c sqlConnector) Connect(ctx context.Context) (Session, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	s := &sqlSession{conn: conn}
	var pipelines sqlpipeline.Conn
	_ = conn.Raw(func(driverConn any) error {
		s.link, s.strict, pipelines = linkOf(driverConn), wrapperOf[*strictConn](driverConn), wrapperOf[sqlpipeline.Conn](driverConn)
		return nil
	})
	if s.link != nil {
		s.interrupt = s.link.CancelRequest
	}
	switch {
	case pipelines != nil:
		c.pipelined.Store(true)
		return &pipelinedSession{sqlSession: s, pipelines: pipelines}, nil
	case c.compounds && s.strict != nil:
		c.pipelined.Store(true)
		return &compoundSession{s}, nil
	}
	return s, nil
}

// sqlSession is a connection of database/sql.
type sqlSession struct {
	conn   *sql.Conn
	link   link               // nil if the driver has none
	strict *strictConn        // nil without [Strict]
	tx     *sql.Tx            // nil before Begin
	cancel context.CancelFunc // ends the context of tx
	stuck  <-chan error       // of a call that has given up waiting
	cut    chan struct{}      // closed once the server was asked to cancel the statement of the handler; nil before

	// interrupt has the server cancel the statement that runs in the session. It is nil if nothing can.
	interrupt func(ctx context.Context) error
}

func (s *sqlSession) PID() uint32 {
	if s.link == nil {
		return 0
	}
	return s.link.PID()
}

func (s *sqlSession) Begin(ctx context.Context, level sql.IsolationLevel) error {
	own, cancel := context.WithCancel(context.WithoutCancel(ctx))
	unwatch := context.AfterFunc(ctx, cancel)
	tx, err := s.conn.BeginTx(own, &sql.TxOptions{Isolation: level})
	if err != nil {
		unwatch()
		cancel()
		return err
	}
	s.tx, s.cancel = tx, cancel
	if !unwatch() {
		return ctx.Err()
	}
	return nil
}

// hand gives the transaction to a handler.
func (s *sqlSession) hand() {
	if s.strict != nil {
		_ = s.conn.Raw(func(any) error {
			s.strict.armed, s.strict.ended, s.strict.failure = true, false, nil
			return nil
		})
	}
}

// back takes the transaction back from a handler that has returned. It returns the error of a statement
// over which the handler went on.
func (s *sqlSession) back(ctx context.Context) error {
	if s.strict == nil {
		return nil
	}
	failed := make(chan error, 1)
	wait, cancel := half(ctx)
	defer cancel()
	_ = s.within(wait, func() error {
		return s.conn.Raw(func(any) error {
			failed <- s.strict.failure
			s.strict.armed = false
			return nil
		})
	})
	select {
	case err := <-failed:
		return err
	default: // a goroutine of the handler is in a statement
		return nil
	}
}

func (s *sqlSession) Status(ctx context.Context) (status TxStatus, err error) {
	if s.link == nil {
		return TxUnknown, nil
	}
	type look struct {
		status TxStatus
		busy   bool
	}
	seen := make(chan look, 1)
	err = s.within(ctx, func() error {
		return s.conn.Raw(func(any) error {
			seen <- look{TxStatus(s.link.TxStatus()), s.link.IsBusy()}
			return nil
		})
	})
	if s.stuck != nil {
		return TxUnknown, ErrStatementOpen
	}
	select {
	case l := <-seen: // Raw returns an error of its own if the connection is closed
		if l.busy {
			err = ErrRowsOpen
		} else {
			err = nil
		}
		return l.status, err
	default:
		return TxUnknown, err
	}
}

func (s *sqlSession) QueryRow(ctx context.Context, statement string, args []any, to ...any) error {
	return s.within(ctx, func() error { return s.tx.QueryRowContext(ctx, statement, args...).Scan(to...) })
}

// execTx runs a statement in the transaction and returns how many rows it has changed.
func (s *sqlSession) execTx(ctx context.Context, statement string, args ...any) (n int64, err error) {
	rows := make(chan int64, 1)
	err = s.within(ctx, func() error {
		n, err := changed(s.tx.ExecContext(ctx, statement, args...))
		rows <- n
		return err
	})
	if err != nil {
		return 0, err
	}
	return <-rows, nil
}

// Commit and Rollback cancel the context of the transaction when their own has ended, because no
// other one reaches the drivers that obey one there.
func (s *sqlSession) Commit(ctx context.Context) error {
	err := s.within(ctx, s.tx.Commit)
	if s.stuck != nil {
		s.cancel()
	}
	return err
}

func (s *sqlSession) Rollback(ctx context.Context) error {
	if s.tx == nil {
		return sql.ErrTxDone
	}
	if s.stuck != nil {
		s.Interrupt()
	}
	err := s.within(ctx, s.tx.Rollback)
	if s.stuck != nil {
		s.cancel()
	}
	return err
}

// end sends a statement that commits the transaction, over a connection of [Strict]. Nothing follows it, also not a statement of a
// goroutine of the handler, which might commit by itself. sent is false if it was not sent.
func (s *sqlSession) end(ctx context.Context, statement string) (sent bool, err error) {
	var reached atomic.Bool
	err = s.within(ctx, func() (err error) {
		rawErr := s.conn.Raw(func(any) error {
			if s.strict.done {
				err = sql.ErrTxDone
				return nil
			}
			reached.Store(true) // before the look at ctx, because nobody waits after its end
			if err = ctx.Err(); err == nil {
				_, err = s.strict.contextConn.ExecContext(ctx, statement, nil)
				s.strict.over = err == nil
			}
			return nil
		})
		if err = errors.Join(rawErr, err); err != nil {
			return err
		}
		err = s.tx.Commit() // it sends nothing
		if errors.Is(err, sql.ErrTxDone) {
			err = nil
		}
		return err
	})
	return reached.Load(), err
}

// within runs a call until ctx ends. The call itself has a goroutine, because a context ends few
// drivers' COMMIT, and because database/sql has a call wait for the statement of another goroutine
// without end. If it gives up, the goroutine ends with that statement or with the connection.
func (s *sqlSession) within(ctx context.Context, call func() error) error {
	if s.stuck != nil {
		select {
		case <-s.stuck: //nolint:errcheck // its caller has given up
			s.stuck = nil
		case <-ctx.Done():
			return ErrStatementOpen
		}
	}
	done := make(chan error, 1)
	go func() { done <- call() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		s.stuck = done
		return ctx.Err()
	}
}

// Interrupt does not wait. The connection is closed later, because the cancellation may come late
// and meet another statement.
func (s *sqlSession) Interrupt() {
	if s.interrupt == nil || s.cut != nil {
		return
	}
	s.cut = make(chan struct{})
	go func() {
		defer close(s.cut)
		ctx, cancel := context.WithTimeout(context.Background(), cleanUpTimeout)
		defer cancel()
		_ = s.interrupt(ctx)
	}()
}

// Exec sends a statement past the sql.Tx. [sql.Conn.ExecContext] would wait for the end of the
// transaction if the connection is lost, and so for itself.
func (s *sqlSession) Exec(ctx context.Context, statement string, args ...any) error {
	values := make([]sqldriver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = sqldriver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	return s.within(ctx, func() (err error) {
		rawErr := s.conn.Raw(func(driverConn any) error {
			if s.strict != nil { // which lets nothing through after the end of the transaction
				driverConn = s.strict.contextConn
			}
			execer, ok := driverConn.(sqldriver.ExecerContext)
			if !ok {
				err = errors.New("the driver cannot execute a statement by itself")
				return nil
			}
			_, err = execer.ExecContext(ctx, statement, values)
			return nil
		})
		return errors.Join(rawErr, err)
	})
}

// Close waits in the background for a call that gave up, because that has the connection.
func (s *sqlSession) Close(broken bool, closed func()) {
	if s.stuck == nil && s.cut == nil {
		s.close(broken)
		closed()
		return
	}
	go func() {
		defer closed()
		if s.stuck != nil {
			<-s.stuck //nolint:errcheck // its caller has given up
		}
		if s.cut != nil {
			<-s.cut
		}
		s.close(true)
	}()
}

func (s *sqlSession) close(broken bool) {
	if broken {
		_ = s.conn.Raw(func(any) error { return sqldriver.ErrBadConn })
	}
	if s.cancel != nil {
		s.cancel()
	}
	_ = s.conn.Close()
}
