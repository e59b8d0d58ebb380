package sqlstore

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
)

// Session is a connection to PostgreSQL for one joined transaction. Only packages for drivers
// past database/sql need it, such as tokenstore/sql/pgx. It is not safe for concurrent use.
//
// The methods are called in this order: Begin, QueryRow any number of times, Commit, Rollback,
// Exec, Close. After Begin each of the others may be left out, and Rollback may follow an error of
// Commit. If the handler has ended the transaction by the methods of its type, Commit returns
// sql.ErrTxDone and does nothing, and QueryRow may return that too. The other errors are those of
// the driver, and have the method SQLState if the server sent them.
type Session interface {
	// Begin opens the transaction. It outlives ctx.
	Begin(ctx context.Context, level sql.IsolationLevel) error
	// QueryRow runs a statement in the transaction and reads at most one row. The error is
	// sql.ErrNoRows if there is none.
	QueryRow(ctx context.Context, statement string, args []any, to ...any) error
	// Commit and Rollback end the transaction. They return when ctx ends, at the latest.
	Commit(ctx context.Context) error
	Rollback(ctx context.Context) error
	// Exec runs a statement after the transaction.
	Exec(ctx context.Context, statement string, args ...any) error
	// Close gives the connection back to its pool, or closes it if it is not fit for others.
	Close(broken bool)
}

// Connector opens sessions. It is safe for concurrent use.
type Connector interface {
	// Connect waits for a connection until ctx ends.
	Connect(ctx context.Context) (Session, error)
	// Size is how many connections the pool has at most, and 0 without a limit.
	Size() int
}

// sqlConnector opens sessions of database/sql.
type sqlConnector struct{ db *sql.DB }

func (c sqlConnector) Size() int { return c.db.Stats().MaxOpenConnections }

func (c sqlConnector) Connect(ctx context.Context) (Session, error) {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	return &sqlSession{conn: conn}, nil
}

// sqlSession is a connection of database/sql.
type sqlSession struct {
	conn   *sql.Conn
	tx     *sql.Tx            // nil before Begin
	cancel context.CancelFunc // ends the context of tx
	stuck  <-chan error       // set if Commit or Rollback gave up waiting
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

func (s *sqlSession) QueryRow(ctx context.Context, statement string, args []any, to ...any) error {
	return s.tx.QueryRowContext(ctx, statement, args...).Scan(to...)
}

func (s *sqlSession) Commit(ctx context.Context) error { return s.end(ctx, s.tx.Commit) }

func (s *sqlSession) Rollback(ctx context.Context) error { return s.end(ctx, s.tx.Rollback) }

// end has a goroutine of its own, because a context ends Commit and Rollback of few drivers. For
// those, end cancels the context of the transaction when its own has ended. With the others the
// goroutine ends with the connection.
func (s *sqlSession) end(ctx context.Context, commitOrRollback func() error) error {
	done := make(chan error, 1)
	go func() { done <- commitOrRollback() }()
	select {
	case err := <-done:
		return err
	case <-ctx.Done():
		s.cancel()
		s.stuck = done
		return ctx.Err()
	}
}

// Exec sends a statement past the sql.Tx. [sql.Conn.ExecContext] would wait for the end of the
// transaction if the connection is lost, and so for itself.
func (s *sqlSession) Exec(ctx context.Context, statement string, args ...any) (err error) {
	values := make([]driver.NamedValue, len(args))
	for i, arg := range args {
		values[i] = driver.NamedValue{Ordinal: i + 1, Value: arg}
	}
	rawErr := s.conn.Raw(func(driverConn any) error {
		execer, ok := driverConn.(driver.ExecerContext)
		if !ok {
			err = errors.New("the driver cannot execute a statement by itself")
			return nil
		}
		_, err = execer.ExecContext(ctx, statement, values)
		return nil
	})
	return errors.Join(rawErr, err)
}

// Close waits in the background for a Commit or Rollback that gave up, because that has the connection.
func (s *sqlSession) Close(broken bool) {
	if s.stuck != nil {
		go func() {
			<-s.stuck //nolint:errcheck // its caller has an error already
			s.close(true)
		}()
		return
	}
	s.close(broken)
}

func (s *sqlSession) close(broken bool) {
	if broken {
		_ = s.conn.Raw(func(any) error { return driver.ErrBadConn })
	}
	_ = s.conn.Close()
	if s.cancel != nil {
		s.cancel()
	}
}
