package sqlstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"strings"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

func registerDrivers() {
	sql.Register(compoundDriver{}.name(), compoundDriver{})
	sql.Register(pipelinedDriver{}.name(), pipelinedDriver{stdlib.GetDefaultDriver()})
}

// pipelined is PostgreSQL with connections that send statements together with BEGIN and COMMIT. Its data source name tells. A proxy
// sees the text of each statement.
var pipelined = backend{"Pipelined", dialect.PostgreSQL, func(tb testing.TB) pools {
	tb.Helper()
	dsn := asPipelined(tb, freshPostgres(tb).dsn)
	db := open(tb, driverOf(dsn), dsn)
	return pools{write: db, read: db, dsn: dsn}
}}

// asPipelined is a data source name of pipelined connections.
func asPipelined(tb testing.TB, dsn string) string {
	tb.Helper()
	u := parsed(tb, dsn)
	q := u.Query()
	q.Set("application_name", pipelinedDriver{}.name())
	q.Set("default_query_exec_mode", "exec")
	u.RawQuery = q.Encode()
	return u.String()
}

// pipelinedDriver is pgx with pipelined connections.
type pipelinedDriver struct{ sqldriver.Driver }

func (pipelinedDriver) name() string { return "pgx-pipelined" }

func (d pipelinedDriver) OpenConnector(dsn string) (sqldriver.Connector, error) {
	config, err := pgx.ParseConfig(dsn)
	if err != nil {
		return nil, err
	}
	return pgxstore.Pipelined(stdlib.GetConnector(*config)), nil
}

// compounding is MariaDB with connections that begin and commit in compound statements, and that refuse nothing of a handler. Its data
// source name tells.
var compounding = backend{"MariaDB-compound", dialect.MySQL, func(tb testing.TB) pools {
	tb.Helper()
	return freshMySQL(tb, testserver.SharedMariaDB(tb)).compound(tb)
}}

// compound opens the pools of MariaDB anew, with connections of [compoundDriver].
func (p pools) compound(tb testing.TB) pools {
	tb.Helper()
	cfg := parsedMySQL(tb, p.dsn)
	cfg.ConnectionAttributes = "program_name:" + compoundDriver{}.name()
	dsn := cfg.FormatDSN()
	db := open(tb, driverOf(dsn), dsn)
	return pools{write: db, read: db, dsn: dsn}
}

// compoundDriver is the driver of MariaDB with connections of [Strict] that refuse nothing.
type compoundDriver struct{ mysqldriver.MySQLDriver }

func (compoundDriver) name() string { return "mysql-compound" }

func (d compoundDriver) OpenConnector(dsn string) (sqldriver.Connector, error) {
	c, err := d.MySQLDriver.OpenConnector(dsn)
	return lenientConnector{sqlstore.Strict(committingConnector{c})}, err
}

type lenientConnector struct{ sqldriver.Connector }

func (c lenientConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	strict := conn.(strictConn)
	return lenientConn{strict, strict.(interface{ Raw() sqldriver.Conn }).Raw().(*committingConn)}, nil
}

type committingConnector struct{ sqldriver.Connector }

func (c committingConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return &committingConn{conn.(strictConn), false}, nil
}

// committingConn is a connection of the driver that remembers whether the store has sent COMMIT over it.
type committingConn struct {
	strictConn
	committed bool
}

func (c *committingConn) ExecContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	res, err := c.strictConn.ExecContext(ctx, statement, args)
	c.committed = c.committed || err == nil && strings.Contains(statement, "COMMIT")
	return res, err
}

// strictConn is what database/sql uses of a connection of [sqlstore.Strict].
type strictConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
	sqldriver.NamedValueChecker
	sqldriver.Pinger
	sqldriver.SessionResetter
	sqldriver.Validator
}

// lenientConn sends what Strict would refuse, but for what comes after the COMMIT of the store.
type lenientConn struct {
	strictConn
	of *committingConn
}

func (c lenientConn) Raw() sqldriver.Conn { return c.strictConn }

func (c lenientConn) to() strictConn {
	if c.of.committed {
		return c.strictConn
	}
	return c.of.strictConn
}

func (c lenientConn) ExecContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	return c.to().ExecContext(ctx, statement, args)
}

func (c lenientConn) QueryContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	return c.to().QueryContext(ctx, statement, args)
}

func (c lenientConn) PrepareContext(ctx context.Context, statement string) (sqldriver.Stmt, error) {
	return c.to().PrepareContext(ctx, statement)
}

func (c lenientConn) ResetSession(ctx context.Context) error {
	c.of.committed = false
	return c.strictConn.ResetSession(ctx)
}
