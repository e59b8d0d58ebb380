package pgxstore

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/sqlpipeline"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx/internal/pgxpipeline"
)

// ErrHandlerEnded says that a handler called Commit of its transaction, or has ended it by a statement and
// goes on. The middleware commits.
var ErrHandlerEnded = errors.New("tokenstore/sql/pgx: the middleware commits this transaction, after the handler has returned")

// Joined returns the store for [idem.NewJoined] with the transactions of a pool. The store keeps
// its records in the same database, for example through stdlib.OpenDBFromPool. The error is that
// of [sqlstore.Store.Joined].
func Joined(store *sqlstore.Store, pool *pgxpool.Pool, opts ...sqlstore.JoinedOption) (*sqlstore.Joined, error) {
	if store == nil || pool == nil {
		return nil, errors.New("tokenstore/sql/pgx: Joined needs a store and a pool")
	}
	return store.JoinedOver(connector{pool}, opts...)
}

// Join returns an engine whose records commit together with what the handlers write through a pool. It
// is [sqlstore.Join] for pgx, with the same options. Closing the engine leaves the pool open.
func Join(ctx context.Context, pool *pgxpool.Pool, opts ...sqlstore.JoinOption) (*idem.Engine, error) {
	if pool == nil {
		return nil, errors.New("tokenstore/sql/pgx: Join needs a pool")
	}
	db := stdlib.OpenDBFromPool(pool) // its connections are those of the pool
	engine, err := sqlstore.JoinOver(ctx, db, dialect.PostgreSQL, func(store *sqlstore.Store, opts ...sqlstore.JoinedOption) (*sqlstore.Joined, error) {
		return Joined(store, pool, opts...)
	}, append([]sqlstore.JoinOption{idem.WithCloser(db)}, opts...)...)
	if err != nil {
		_ = db.Close()
	}
	return engine, err
}

// Tx returns the transaction of the running handler. Its writes commit together with the record
// of the request. Its Begin makes savepoints, as usual. Do not call its Commit or Rollback. Commit
// returns ErrHandlerEnded, and after either the middleware rolls everything back. A handler that has
// sent ROLLBACK or COMMIT as a statement gets ErrHandlerEnded for each further statement. Its Conn is the
// connection itself, and calls of that are not noticed.
//
// The error wraps idem.ErrNoExecution, idem.ErrExecutionEnded, idem.ErrNotJoined or
// sqlstore.ErrOtherStore.
func Tx(ctx context.Context) (pgx.Tx, error) {
	joined, err := sqlstore.SessionOf(ctx)
	if err != nil {
		return nil, err
	}
	s, ok := joined.(*session)
	if !ok {
		return nil, sqlstore.ErrOtherStore
	}
	return s.handler, nil
}

// connector opens sessions of a pool.
type connector struct{ pool *pgxpool.Pool }

func (c connector) Pool() any { return c.pool }

func (c connector) Size() int { return int(c.pool.Config().MaxConns) }

func (c connector) Pipelined() bool { return true }

func (c connector) Connect(ctx context.Context) (sqlstore.Session, error) {
	conn, err := c.pool.Acquire(ctx)
	if err != nil {
		return nil, err
	}
	return &session{conn: conn}, nil
}

// session is a connection of a pool.
type session struct {
	conn      *pgxpool.Conn
	tx        pgx.Tx
	handler   *handlerTx
	committed bool          // COMMIT was sent and executed, whatever its outcome
	cut       chan struct{} // closed once the server was asked to cancel the statement of the handler; nil before
}

var _ sqlstore.PipelinedSession = (*session)(nil)

func (s *session) PID() uint32 { return s.conn.Conn().PgConn().PID() }

func (s *session) Status(ctx context.Context) (sqlstore.TxStatus, error) {
	if !s.handler.gate.close(ctx) {
		return sqlstore.TxUnknown, sqlstore.ErrStatementOpen
	}
	return s.handler.gate.status()
}

// Interrupt does not wait. The connection is closed later, because the cancellation may come late
// and meet another statement.
func (s *session) Interrupt() {
	if s.cut != nil {
		return
	}
	s.cut = make(chan struct{})
	go func() {
		defer close(s.cut)
		ctx, cancel := context.WithTimeout(context.Background(), pgxpipeline.CloseTimeout)
		defer cancel()
		_ = s.conn.Conn().PgConn().CancelRequest(ctx)
	}()
}

func (s *session) Begin(ctx context.Context, level sql.IsolationLevel) error {
	opts, err := pgxpipeline.Options(level)
	if err != nil {
		return err
	}
	tx, err := s.conn.BeginTx(ctx, opts)
	if err == nil {
		s.hasBegun(tx)
	}
	return err
}

func (s *session) hasBegun(tx pgx.Tx) {
	s.tx, s.handler = tx, &handlerTx{gatedTx: gatedTx{tx, &gate{conn: s.conn.Conn().PgConn()}}}
}

// BeginRow implements [sqlstore.PipelinedSession]. An error after BEGIN leaves the transaction open.
func (s *session) BeginRow(ctx context.Context, level sql.IsolationLevel, statement string, args []any, to ...any) error {
	opts, err := pgxpipeline.Options(level)
	if err != nil {
		return err
	}
	tx, err := pgxpipeline.BeginRow(ctx, s.conn.Conn(), opts, &sqlpipeline.Statement{Text: statement, Args: args, To: to})
	s.hasBegun(tx)
	return err
}

// RowCommit implements [sqlstore.PipelinedSession].
func (s *session) RowCommit(ctx context.Context, statement string, args []any, to ...any) (skipped bool, err error) {
	if !s.handler.gate.close(ctx) {
		return true, sqlstore.ErrStatementOpen
	}
	if s.handler.ended.Swap(true) {
		return true, sql.ErrTxDone
	}
	p := &sqlpipeline.Statement{Text: statement, Args: args, To: to}
	s.committed, err = pgxpipeline.RowCommit(ctx, s.conn.Conn(), p)
	return p.Skipped, err
}

func (s *session) QueryRow(ctx context.Context, statement string, args []any, to ...any) error {
	return pgxpipeline.Standard(s.tx.QueryRow(ctx, statement, args...).Scan(to...))
}

func (s *session) Commit(ctx context.Context) error {
	if !s.handler.gate.close(ctx) {
		return sqlstore.ErrStatementOpen
	}
	if s.handler.ended.Swap(true) {
		return sql.ErrTxDone
	}
	return pgxpipeline.Standard(s.tx.Commit(ctx))
}

func (s *session) Rollback(ctx context.Context) error {
	switch {
	case s.handler == nil || s.committed:
		return sql.ErrTxDone
	case !s.handler.gate.close(immediately):
		s.Interrupt()
	}
	if !s.handler.gate.close(ctx) {
		return sqlstore.ErrStatementOpen
	}
	s.handler.ended.Store(true)
	return pgxpipeline.Standard(s.tx.Rollback(ctx))
}

// immediately is over.
var immediately = func() context.Context {
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	return ctx
}()

func (s *session) Exec(ctx context.Context, statement string, args ...any) error {
	if s.handler != nil && !s.handler.gate.close(ctx) {
		return sqlstore.ErrStatementOpen
	}
	_, err := s.conn.Exec(ctx, statement, args...)
	return err
}

func (s *session) Close(broken bool, closed func()) {
	if s.cut == nil && (s.handler == nil || s.handler.gate.close(immediately)) {
		s.close(broken)
		closed()
		return
	}
	go func() {
		defer closed()
		s.handler.gate.close(context.Background())
		if s.cut != nil {
			<-s.cut
		}
		s.close(true)
	}()
}

func (s *session) close(broken bool) {
	if broken {
		ctx, cancel := context.WithTimeout(context.Background(), pgxpipeline.CloseTimeout)
		defer cancel()
		_ = s.conn.Conn().Close(ctx)
	}
	s.conn.Release()
}

// handlerTx is a transaction as its handler has it. The handler cannot end it.
type handlerTx struct {
	gatedTx
	ended atomic.Bool
}

// Commit has the middleware roll back.
func (t *handlerTx) Commit(context.Context) error {
	t.ended.Store(true)
	return ErrHandlerEnded
}

// Rollback has the middleware roll back.
func (t *handlerTx) Rollback(context.Context) error {
	if t.ended.Swap(true) {
		return pgx.ErrTxClosed
	}
	return nil
}
