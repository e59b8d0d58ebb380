package pgxpipeline

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"fmt"
	"io"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/internal/sqlpipeline"
)

// Wrap wraps a connector of pgx's stdlib. Its connections are of type [sqlpipeline.Conn].
func Wrap(c sqldriver.Connector) sqldriver.Connector { return connector{c} }

type connector struct{ sqldriver.Connector }

func (c connector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	made, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	of, ok := made.(*stdlib.Conn)
	if !ok {
		_ = made.Close()
		return nil, fmt.Errorf("tokenstore/sql/pgx: Pipelined: the driver's connection is a %T, want that of pgx's stdlib", made)
	}
	return &conn{Conn: of}, nil
}

// Close closes a connector that has to be closed, as [sql.DB.Close] does.
func (c connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// conn is a connection of [Wrap]. database/sql calls its methods one at a time.
type conn struct {
	*stdlib.Conn
	last *sqlpipeline.Statement // goes with the next COMMIT
}

var _ sqlpipeline.Conn = (*conn)(nil)

// Raw is the connection of the driver.
func (c *conn) Raw() sqldriver.Conn { return c.Conn }

// CommitWith implements [sqlpipeline.Conn].
func (c *conn) CommitWith(st *sqlpipeline.Statement) { c.last = st }

// BeginTx implements [sqlpipeline.Conn].
func (c *conn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	c.last = nil
	st := sqlpipeline.OfBegin(ctx)
	if st == nil {
		return c.Conn.BeginTx(ctx, opts)
	}
	if c.Conn.Conn().IsClosed() {
		return nil, sqldriver.ErrBadConn
	}
	levels, err := Options(sql.IsolationLevel(opts.Isolation))
	if err != nil {
		return nil, err
	}
	tx, err := BeginRow(ctx, c.Conn.Conn(), levels, st)
	if err != nil {
		_ = rollBack(ctx, tx)
		return nil, err
	}
	return &transaction{ctx, tx, c}, nil
}

// transaction is a transaction that has begun with a statement.
type transaction struct {
	ctx  context.Context // of BeginTx, as that of stdlib
	tx   pgx.Tx
	conn *conn
}

func (t *transaction) Commit() error {
	st := t.conn.last
	if t.conn.last = nil; st == nil {
		return t.tx.Commit(t.ctx)
	}
	executed, err := RowCommit(t.ctx, t.conn.Conn.Conn(), st)
	if !executed {
		_ = rollBack(t.ctx, t.tx)
	}
	return err
}

func (t *transaction) Rollback() error { return t.tx.Rollback(t.ctx) }

// rollBack ends a transaction after an error. If that fails, pgx closes the connection.
func rollBack(ctx context.Context, tx pgx.Tx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), CloseTimeout)
	defer cancel()
	return tx.Rollback(ctx)
}
