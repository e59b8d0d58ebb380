package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"io"
	"regexp"
)

// ErrStatementFailed says that a statement of the transaction has failed before, and that this one was
// not sent. It wraps the error of the first.
var ErrStatementFailed = errors.New("tokenstore/sql: an earlier statement of the transaction has failed, so no other one is sent: answer with an error, or go back to a savepoint")

// Strict wraps a connector, for [database/sql.OpenDB]. A handler that ignores the error of a statement
// then commits nothing. On MySQL, MariaDB and SQLite the server would let it go on, and a payment
// could commit without its debit, for example after a lock time-out. On PostgreSQL the server itself
// refuses to go on. Strict also refuses statements after a handler has ended its
// transaction by a statement. Behind a pooler of PostgreSQL this keeps it from paying beside a duplicate, and
// on MySQL and MariaDB from paying in another transaction. On PostgreSQL with pgx the state of the protocol tells
// that, and otherwise how the statement begins.
//
// In the transaction of a handler in joined mode, once a statement has failed, each further one fails
// with [ErrStatementFailed] and is not sent. ROLLBACK TO SAVEPOINT is sent, and ends that. If the handler
// answers with success all the same, everything is rolled back, with the event misused, and a repeat
// runs. So a handler that expects an error, such as that of a unique key, sets a savepoint before.
// Everywhere else the connections work as without Strict.
//
// On MariaDB joined mode begins and commits over such connections with compound statements, which have no round trips of their own.
//
// It needs a driver with the interfaces of contexts, such as pgx, go-sql-driver/mysql and
// modernc.org/sqlite. [sql.Conn.Raw] gives a connection whose method Raw returns that of the driver.
// Calls through that are not noticed, and neither is a statement with a context that had ended before, which
// [database/sql] does not hand to the driver.
func Strict(c sqldriver.Connector) sqldriver.Connector { return strictConnector{c} }

// OpenStrict is [sql.Open] with [Strict].
func OpenStrict(driverName, dataSourceName string) (*sql.DB, error) {
	db, err := sql.Open(driverName, dataSourceName)
	if err != nil {
		return nil, err
	}
	defer db.Close() //nolint:errcheck // it has no connection
	d := db.Driver()
	var c sqldriver.Connector = namedConnector{dataSourceName, d}
	if of, ok := d.(sqldriver.DriverContext); ok {
		if c, err = of.OpenConnector(dataSourceName); err != nil {
			return nil, err
		}
	}
	return sql.OpenDB(Strict(c)), nil
}

// namedConnector connects to a name, with a driver that has no connectors.
type namedConnector struct {
	dsn string
	of  sqldriver.Driver
}

func (c namedConnector) Connect(context.Context) (sqldriver.Conn, error) { return c.of.Open(c.dsn) }
func (c namedConnector) Driver() sqldriver.Driver                        { return c.of }

type strictConnector struct{ sqldriver.Connector }

func (c strictConnector) Connect(ctx context.Context) (sqldriver.Conn, error) {
	conn, err := c.Connector.Connect(ctx)
	if err != nil {
		return nil, err
	}
	with, ok := conn.(contextConn)
	if !ok {
		_ = conn.Close()
		return nil, fmt.Errorf("tokenstore/sql: Strict: the driver's %T has no methods with contexts", conn)
	}
	return &strictConn{contextConn: with, link: linkOf(conn)}, nil
}

// Close closes a connector that has to be closed, as [sql.DB.Close] does.
func (c strictConnector) Close() error {
	if closer, ok := c.Connector.(io.Closer); ok {
		return closer.Close()
	}
	return nil
}

// contextConn is what database/sql uses of a connection.
type contextConn interface {
	sqldriver.Conn
	sqldriver.ConnBeginTx
	sqldriver.ConnPrepareContext
	sqldriver.ExecerContext
	sqldriver.QueryerContext
}

// strictConn is a connection of [Strict]. database/sql calls its methods, those of its statements and
// those of its rows one at a time.
type strictConn struct {
	contextConn
	link link // nil if the driver is not pgx

	armed   bool  // a handler has the connection
	ended   bool  // it has sent a statement that ends its transaction
	failure error // of the handler's first statement that has failed

	// A statement of the store has begun the transaction, and another one may end it, see [compoundSession].
	begun bool // the next BeginTx sends nothing
	done  bool // Commit or Rollback of the sql.Tx was called
	over  bool // the transaction has been committed, so nothing more is sent
}

// Raw is the connection of the driver.
func (c *strictConn) Raw() sqldriver.Conn { return c.contextConn }

// comments may come before a statement, for example to name the service that has sent it.
const comments = `(?i)^(\s|/\*([^*]|\*+[^*/])*\*+/|(--|#)[^\n]*\n)*`

// endings are statements that end a transaction. The state of the protocol tells that of PostgreSQL, with pgx.
var endings = regexp.MustCompile(comments + `(BEGIN(\s+(WORK|TRANSACTION))?\s*(;|$)|(START\s+TRANSACTION|COMMIT|END|ROLLBACK)\b|` +
	`SET\s+(([^'";]|'[^']*'|"[^"]*")*,\s*)?((SESSION|LOCAL)\s+|@@((SESSION|LOCAL)\.)?)?autocommit\b)`)

var rollbackTo = regexp.MustCompile(comments + `ROLLBACK\s+(WORK\s+|TRANSACTION\s+)?TO\s`)

// enter lets a statement through.
func (c *strictConn) enter(statement string) error {
	switch {
	case c.over:
		return sql.ErrTxDone
	case !c.armed:
		return nil
	case c.link != nil && TxStatus(c.link.TxStatus()) == TxIdle:
		return ErrHandlerEnded
	case c.ended:
		c.failure = ErrHandlerEnded // the handler may ignore this one
		return ErrHandlerEnded
	case c.failure != nil && !rollbackTo.MatchString(statement):
		return fmt.Errorf("%w: %w", ErrStatementFailed, c.failure)
	}
	return nil
}

// leave notes what became of a statement.
func (c *strictConn) leave(statement string, err error) {
	switch {
	case !c.armed, errors.Is(err, sqldriver.ErrSkip): // another method of the driver comes next
	case err != nil && c.failure == nil:
		c.failure = err
	case err == nil && c.link == nil && endings.MatchString(statement) && !rollbackTo.MatchString(statement):
		c.ended = true
	case err == nil && c.failure != nil && rollbackTo.MatchString(statement):
		c.failure = nil
	}
}

// rows returns the rows of a statement, which may still fail.
func (c *strictConn) rows(rows sqldriver.Rows, err error) (sqldriver.Rows, error) {
	if err != nil || !c.armed {
		return rows, err
	}
	return &strictRows{rows, c}, nil
}

// BeginTx sends nothing if a statement has begun the transaction.
func (c *strictConn) BeginTx(ctx context.Context, opts sqldriver.TxOptions) (sqldriver.Tx, error) {
	if c.begun {
		c.begun = false
		return &strictTx{conn: c}, nil
	}
	tx, err := c.contextConn.BeginTx(ctx, opts)
	if err != nil {
		return nil, err
	}
	return &strictTx{c, tx}, nil
}

// strictTx is a transaction of a [strictConn]. Nothing is sent for its end if a statement has committed it.
type strictTx struct {
	conn *strictConn
	tx   sqldriver.Tx // nil if a statement has begun it
}

func (t *strictTx) Commit() error {
	if t.tx == nil {
		return t.end(func() error { return t.exec("COMMIT") })
	}
	return t.end(t.tx.Commit)
}

func (t *strictTx) Rollback() error {
	if t.tx == nil {
		return t.end(func() error { return t.exec("ROLLBACK") })
	}
	return t.end(t.tx.Rollback)
}

func (t *strictTx) end(send func() error) error {
	if t.conn.over {
		return nil
	}
	t.conn.done = true
	return send()
}

func (t *strictTx) exec(statement string) error {
	_, err := t.conn.contextConn.ExecContext(context.Background(), statement, nil)
	return err
}

func (c *strictConn) ExecContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Result, error) {
	if err := c.enter(statement); err != nil {
		return nil, err
	}
	res, err := c.contextConn.ExecContext(ctx, statement, args)
	c.leave(statement, err)
	return res, err
}

func (c *strictConn) QueryContext(ctx context.Context, statement string, args []sqldriver.NamedValue) (sqldriver.Rows, error) {
	if err := c.enter(statement); err != nil {
		return nil, err
	}
	rows, err := c.contextConn.QueryContext(ctx, statement, args)
	c.leave(statement, err)
	return c.rows(rows, err)
}

func (c *strictConn) Prepare(statement string) (sqldriver.Stmt, error) {
	return c.PrepareContext(context.Background(), statement)
}

func (c *strictConn) PrepareContext(ctx context.Context, statement string) (sqldriver.Stmt, error) {
	if err := c.enter(statement); err != nil {
		return nil, err
	}
	stmt, err := c.contextConn.PrepareContext(ctx, statement)
	if err != nil {
		c.leave(statement, err)
		return nil, err
	}
	return &strictStmt{stmt, c, statement}, nil
}

// CheckNamedValue also notes an argument that keeps a statement from being sent.
func (c *strictConn) CheckNamedValue(v *sqldriver.NamedValue) error {
	return c.check(c.contextConn, v)
}

// check has a part of the driver check an argument, if it can. Otherwise it does what database/sql does.
func (c *strictConn) check(part any, v *sqldriver.NamedValue) (err error) {
	err = sqldriver.ErrSkip
	if checker, ok := part.(sqldriver.NamedValueChecker); ok {
		err = checker.CheckNamedValue(v)
	}
	if errors.Is(err, sqldriver.ErrSkip) {
		v.Value, err = sqldriver.DefaultParameterConverter.ConvertValue(v.Value)
	}
	if err != nil && !errors.Is(err, sqldriver.ErrRemoveArgument) {
		c.leave("", err)
	}
	return err
}

func (c *strictConn) Ping(ctx context.Context) error {
	if pinger, ok := c.contextConn.(sqldriver.Pinger); ok {
		return pinger.Ping(ctx)
	}
	return nil
}

// ResetSession readies the connection for its next user.
func (c *strictConn) ResetSession(ctx context.Context) error {
	c.armed, c.ended, c.failure, c.begun, c.done, c.over = false, false, nil, false, false, false
	if resetter, ok := c.contextConn.(sqldriver.SessionResetter); ok {
		return resetter.ResetSession(ctx)
	}
	return nil
}

func (c *strictConn) IsValid() bool {
	validator, ok := c.contextConn.(sqldriver.Validator)
	return !ok || validator.IsValid()
}
