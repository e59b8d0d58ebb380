package sqlstore_test

import (
	"cmp"
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"io"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/sqlpipeline"
)

// spy sees what the connections of a pool are about to send.
type spy struct {
	look atomic.Pointer[func(*statement)]
}

// statement is what goes to a driver. BEGIN is one too.
type statement struct {
	text string // may be changed
	args []sqldriver.NamedValue
	end  error // in place of the end of its rows
}

// sees has look see each statement before it is sent. The driver of MySQL may see one with arguments twice, because it is prepared then.
func (s *spy) sees(look func(*statement)) { s.look.Store(&look) }

func (s *spy) show(text string, args []sqldriver.NamedValue) statement {
	st := statement{text: text, args: args}
	if look := s.look.Load(); look != nil {
		(*look)(&st)
	}
	return st
}

// once runs f before the first statement with a text.
func (s *spy) once(text string, f func()) {
	var done atomic.Bool
	s.sees(func(st *statement) {
		if strings.Contains(st.text, text) && done.CompareAndSwap(false, true) {
			f()
		}
	})
}

// spied opens the pools of a database anew, with connections that a spy sees.
func (p pools) spied(tb testing.TB) (pools, *spy) {
	tb.Helper()
	s, dsn := &spy{}, cmp.Or(p.far, p.dsn)
	again := func(of *sql.DB) *sql.DB {
		driver := of.Driver()
		for _, own := range []interface {
			sqldriver.Driver
			name() string
		}{compoundDriver{}, pipelinedDriver{driver}} {
			if own.name() == driverOf(dsn) {
				driver = own
			}
		}
		db := sql.OpenDB(spiedConnector{driver, dsn, s})
		db.SetMaxOpenConns(of.Stats().MaxOpenConnections)
		tb.Cleanup(func() { _ = db.Close() })
		return db
	}
	both := p.read == p.write
	p.write = again(p.write)
	switch {
	case both:
		p.read = p.write
	case driverOf(dsn) == "sqlite":
		p.read = again(p.read)
	}
	return p, s
}

type spiedConnector struct {
	driver sqldriver.Driver
	dsn    string
	spy    *spy
}

func (c spiedConnector) Driver() sqldriver.Driver { return c.driver }

func (c spiedConnector) Connect(ctx context.Context) (conn sqldriver.Conn, err error) {
	if of, ok := c.driver.(sqldriver.DriverContext); ok {
		connector, err := of.OpenConnector(c.dsn)
		if err != nil {
			return nil, err
		}
		conn, err = connector.Connect(ctx)
		if err != nil {
			return nil, err
		}
	} else if conn, err = c.driver.Open(c.dsn); err != nil {
		return nil, err
	}
	if pipelines, ok := conn.(sqlpipeline.Conn); ok {
		return pipelinedSpiedConn{spiedConn{conn, c.spy}, pipelines}, nil
	}
	return spiedConn{conn, c.spy}, nil
}

type spiedConn struct {
	sqldriver.Conn
	spy *spy
}

func (c spiedConn) Raw() sqldriver.Conn { return c.Conn }

// pipelinedSpiedConn is one that sends a statement together with COMMIT.
type pipelinedSpiedConn struct {
	spiedConn
	sqlpipeline.Conn
}

func (c pipelinedSpiedConn) CommitWith(st *sqlpipeline.Statement) {
	if st != nil {
		c.spy.show(st.Text, nil)
	}
	c.Conn.CommitWith(st)
}

func (c spiedConn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	c.spy.show("BEGIN", nil)
	return c.Conn.(sqldriver.ConnBeginTx).BeginTx(ctx, opts)
}

func (c spiedConn) PrepareContext(ctx context.Context, text string) (sqldriver.Stmt, error) {
	return c.Conn.(sqldriver.ConnPrepareContext).PrepareContext(ctx, c.spy.show(text, nil).text)
}

func (c spiedConn) ExecContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return c.Conn.(sqldriver.ExecerContext).ExecContext(ctx, c.spy.show(text, args).text, args)
}

func (c spiedConn) QueryContext(ctx context.Context, text string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	st := c.spy.show(text, args)
	rows, err := c.Conn.(sqldriver.QueryerContext).QueryContext(ctx, st.text, args)
	if err == nil && st.end != nil {
		rows = brokenRows{rows, st.end}
	}
	return rows, err
}

func (c spiedConn) CheckNamedValue(v *sqldriver.NamedValue) error {
	if checker, ok := c.Conn.(sqldriver.NamedValueChecker); ok {
		return checker.CheckNamedValue(v)
	}
	return sqldriver.ErrSkip
}

func (c spiedConn) ResetSession(ctx context.Context) error {
	if resetter, ok := c.Conn.(sqldriver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c spiedConn) IsValid() bool {
	validator, ok := c.Conn.(sqldriver.Validator)
	return !ok || validator.IsValid()
}

// brokenRows break off after the last row.
type brokenRows struct {
	sqldriver.Rows
	err error
}

func (r brokenRows) Next(values []sqldriver.Value) error {
	err := r.Rows.Next(values)
	if errors.Is(err, io.EOF) {
		return r.err
	}
	return err
}
