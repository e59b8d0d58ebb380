package sqlstore_test

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"testing"

	mysqldriver "github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/internal/test/inside"
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
	return pools{db, db, dsn}
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
	return pools{db, db, dsn}
}

// compoundDriver is the driver of MariaDB with connections of [Strict] that refuse nothing.
type compoundDriver struct{ mysqldriver.MySQLDriver }

func (compoundDriver) name() string { return "mysql-compound" }

func (d compoundDriver) OpenConnector(dsn string) (sqldriver.Connector, error) {
	c, err := d.MySQLDriver.OpenConnector(dsn)
	return lenientConnector{sqlstore.Strict(c)}, err
}

type lenientConnector struct{ sqldriver.Connector }

func (c lenientConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	return lenientConn{conn.(strictConn)}, nil
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

type lenientConn struct{ strictConn }

func (c lenientConn) refuseNothing() { *inside.Field[bool](c.strictConn, "armed") = false }

func (c lenientConn) Raw() sqldriver.Conn { return c.strictConn }

func (c lenientConn) ExecContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	c.refuseNothing()
	return c.strictConn.ExecContext(ctx, statement, args)
}

func (c lenientConn) QueryContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	c.refuseNothing()
	return c.strictConn.QueryContext(ctx, statement, args)
}

func (c lenientConn) PrepareContext(ctx context.Context, statement string) (sqldriver.Stmt, error) {
	c.refuseNothing()
	return c.strictConn.PrepareContext(ctx, statement)
}
