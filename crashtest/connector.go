package crashtest

import (
	"context"
	"database/sql"
	"database/sql/driver"
	"errors"
	"io"
)

// Connector wraps a connector of a driver, for [sql.OpenDB]. Each statement, BEGIN, COMMIT and ROLLBACK is a point.
func (e *Env) Connector(c driver.Connector) driver.Connector {
	if e == nil {
		return c
	}
	return connector{c, e}
}

// OpenDB is [sql.Open] with [Env.Connector].
func (e *Env) OpenDB(driverName, dataSourceName string) (*sql.DB, error) {
	db, err := sql.Open(driverName, dataSourceName)
	if err != nil || e == nil {
		return db, err
	}
	defer db.Close() //nolint:errcheck // it has no connection
	d := db.Driver()
	var c driver.Connector = named{dataSourceName, d}
	if of, ok := d.(driver.DriverContext); ok {
		if c, err = of.OpenConnector(dataSourceName); err != nil {
			return nil, err
		}
	}
	return sql.OpenDB(e.Connector(c)), nil
}

// named connects to a name, with a driver that has no connectors.
type named struct {
	name string
	of   driver.Driver
}

func (n named) Connect(context.Context) (driver.Conn, error) { return n.of.Open(n.name) }
func (n named) Driver() driver.Driver                        { return n.of }

type connector struct {
	driver.Connector
	env *Env
}

func (c connector) Connect(ctx context.Context) (driver.Conn, error) {
	raw, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &conn{Conn: raw, env: c.env}, nil
}

// Close closes a connector that has to be closed, as [sql.DB.Close] does.
func (c connector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// conn is a connection whose calls are points.
type conn struct {
	driver.Conn
	env    *Env
	broken bool
	// skipped is a point whose call has sent nothing yet.
	skipped Passage
}

// Raw is the connection of the driver.
func (c *conn) Raw() driver.Conn { return c.Conn }

// cut breaks the connection. The server then rolls back what is open.
func (c *conn) cut() {
	if !c.broken {
		c.broken = true
		_ = c.Conn.Close()
	}
}

// call makes a point of a call.
func call[T any](ctx context.Context, c *conn, name string, send func() (T, error)) (result T, err error) {
	var none T
	if c.broken {
		return none, driver.ErrBadConn
	}
	p := c.skipped
	if c.skipped = (Passage{}); p.env == nil {
		p = c.env.Before(name)
	}
	if p.Cut() {
		c.cut()
		return none, errConnection
	}
	result, err = send()
	if errors.Is(err, driver.ErrSkip) {
		c.skipped = p // nothing was sent, and database/sql prepares the statement
		return none, err
	}
	if p.After(ctx, err) {
		if open, ok := any(result).(io.Closer); ok && err == nil { // with open rows, SQLite keeps the connection and its locks
			_ = open.Close()
		}
		c.cut()
		return none, cmpErr(ctx.Err(), errConnection)
	}
	return result, err
}

func (c *conn) BeginTx(ctx context.Context, opts driver.TxOptions) (driver.Tx, error) {
	inner, err := call(ctx, c, "BEGIN", func() (driver.Tx, error) {
		if b, ok := c.Conn.(driver.ConnBeginTx); ok {
			return b.BeginTx(ctx, opts)
		}
		return c.Conn.Begin() //nolint:staticcheck // an old driver has no other
	})
	if err != nil {
		return nil, err
	}
	return &tx{inner, c, ctx}, nil
}

// tx is a transaction. Its ctx is that of BeginTx, because Commit has none.
type tx struct {
	driver.Tx
	conn *conn
	ctx  context.Context
}

func (t *tx) Commit() error   { return t.end("COMMIT", t.Tx.Commit) }
func (t *tx) Rollback() error { return t.end("ROLLBACK", t.Tx.Rollback) }

func (t *tx) end(name string, send func() error) error {
	_, err := call(t.ctx, t.conn, name, func() (struct{}, error) { return struct{}{}, send() })
	return err
}

func (c *conn) ExecContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Result, error) {
	e, ok := c.Conn.(driver.ExecerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	return call(ctx, c, StatementName(query), func() (driver.Result, error) { return e.ExecContext(ctx, query, args) })
}

func (c *conn) QueryContext(ctx context.Context, query string, args []driver.NamedValue) (driver.Rows, error) {
	q, ok := c.Conn.(driver.QueryerContext)
	if !ok {
		return nil, driver.ErrSkip
	}
	return call(ctx, c, StatementName(query), func() (driver.Rows, error) { return q.QueryContext(ctx, query, args) })
}

func (c *conn) Prepare(query string) (driver.Stmt, error) {
	return c.PrepareContext(context.Background(), query)
}

func (c *conn) PrepareContext(ctx context.Context, query string) (driver.Stmt, error) {
	if c.broken {
		return nil, driver.ErrBadConn
	}
	var inner driver.Stmt
	var err error
	if p, ok := c.Conn.(driver.ConnPrepareContext); ok {
		inner, err = p.PrepareContext(ctx, query)
	} else {
		inner, err = c.Conn.Prepare(query)
	}
	if err != nil {
		return nil, err
	}
	return &stmt{inner, c, StatementName(query)}, nil
}

func (c *conn) Close() error {
	if c.broken {
		return nil
	}
	return c.Conn.Close()
}

func (c *conn) Ping(ctx context.Context) error {
	if c.broken {
		return driver.ErrBadConn
	}
	if p, ok := c.Conn.(driver.Pinger); ok {
		return p.Ping(ctx)
	}
	return nil
}

func (c *conn) ResetSession(ctx context.Context) error {
	if c.broken {
		return driver.ErrBadConn
	}
	if r, ok := c.Conn.(driver.SessionResetter); ok {
		return r.ResetSession(ctx)
	}
	return nil
}

func (c *conn) IsValid() bool {
	v, ok := c.Conn.(driver.Validator)
	return !c.broken && (!ok || v.IsValid())
}

func (c *conn) CheckNamedValue(v *driver.NamedValue) error { return check(c.Conn, v) }

// check has a part of the driver check an argument, if it can.
func check(part any, v *driver.NamedValue) error {
	if checker, ok := part.(driver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return driver.ErrSkip
}

// stmt is a prepared statement.
type stmt struct {
	driver.Stmt
	conn *conn
	name string
}

func (s *stmt) ExecContext(ctx context.Context, args []driver.NamedValue) (driver.Result, error) {
	return call(ctx, s.conn, s.name, func() (driver.Result, error) {
		if e, ok := s.Stmt.(driver.StmtExecContext); ok {
			return e.ExecContext(ctx, args)
		}
		values, err := unnamed(args)
		if err != nil {
			return nil, err
		}
		return s.Stmt.Exec(values) //nolint:staticcheck // an old driver has no other
	})
}

func (s *stmt) QueryContext(ctx context.Context, args []driver.NamedValue) (driver.Rows, error) {
	return call(ctx, s.conn, s.name, func() (driver.Rows, error) {
		if q, ok := s.Stmt.(driver.StmtQueryContext); ok {
			return q.QueryContext(ctx, args)
		}
		values, err := unnamed(args)
		if err != nil {
			return nil, err
		}
		return s.Stmt.Query(values) //nolint:staticcheck // an old driver has no other
	})
}

func (s *stmt) Close() error {
	err := s.Stmt.Close() // also on a broken connection, for the same reason as rows
	if s.conn.broken {
		return nil
	}
	return err
}

// CheckNamedValue asks the statement, and then the connection.
func (s *stmt) CheckNamedValue(v *driver.NamedValue) error {
	if err := check(s.Stmt, v); !errors.Is(err, driver.ErrSkip) {
		return err
	}
	return check(s.conn.Conn, v)
}

func unnamed(args []driver.NamedValue) ([]driver.Value, error) {
	values := make([]driver.Value, len(args))
	for i, a := range args {
		if a.Name != "" {
			return nil, errors.New("crashtest: the driver knows no named arguments")
		}
		values[i] = a.Value
	}
	return values, nil
}
