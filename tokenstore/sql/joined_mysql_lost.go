package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// errConnectionLost is the reason of driver.ErrRolledBack if the connection ended before COMMIT.
var errConnectionLost = errors.New("tokenstore/sql: the connection was lost before COMMIT: it was cut or killed, the context of a statement ended, or the transaction was idle for too long")

// errConnectionLostAtEnd is errConnectionLost if COMMIT was sent with the statement that met the loss.
var errConnectionLostAtEnd = errors.New("tokenstore/sql: the connection was lost before COMMIT or in it: it was cut or killed, the context of a statement ended, or the transaction was idle for too long")

// lost finds out what became of a transaction whose savepoint could not be removed. failed says
// that the handler has not answered with success. With [Strict] a handler that has answered so did not
// go on either.
//
//	the savepoint is there after all     the error that was met
//	the record is committed as pending   ErrEscaped
//	the handler still uses it            ErrInUse: it is closed, and the server rolls back
//	rows are open, and others find the   ErrRowsOpen: the same
//	record locked
//	the connection was lost              errConnectionLost: the server rolls back
//	the server has lost the transaction  ErrSwallowed, or the conflict that was met just now
//	just now, and nothing followed
//	anything else                        ErrEscaped
//
// The last row has each COMMIT that the handler sent after a deadlock. It has the handler's own
// ROLLBACK too, because nothing tells that from such a COMMIT.
func (g *mysqlGuard) lost(ctx context.Context, t *joinedTx, cause error, failed bool) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	// The sql.Tx may be over, or the time of the call, while the transaction is not.
	err := t.session.Exec(ctx, t.releaseSavepoint())
	if err == nil {
		return cause
	}
	t.unfit = true
	if errors.Is(cause, sql.ErrTxDone) {
		cause = fmt.Errorf("%w: %w", ErrHandlerEnded, err)
	}
	conflict := g.joined.dialect.Fault(cause) == sqldialect.Conflict
	nothing := (failed || conflict || t.failed != nil) && g.nothingFollowed(ctx, t)
	rows := rowsOpen(cause)
	locked := false
	if rows { // nothing can be sent to ask for the savepoint, so its record tells
		locked, _ = g.held(ctx, t.id)
	}
	left, err := g.leftPending(ctx, t)
	switch {
	case err == nil && left:
		return fmt.Errorf("%w: its record was committed as pending", driver.ErrEscaped)
	case errors.Is(cause, ErrInUse):
		return cause
	case locked:
		return fmt.Errorf("%w: %w", ErrRowsOpen, cause)
	case rows:
		return fmt.Errorf("%w: its transaction was over, and it has left rows open", driver.ErrEscaped)
	case connectionLost(cause): // if its record was committed as pending, the next request finds out
		return fmt.Errorf("%w: %w", errConnectionLost, cause)
	case nothing && conflict:
		return cause
	case nothing:
		return fmt.Errorf("%w: the server had rolled the transaction back", driver.ErrSwallowed)
	}
	return fmt.Errorf("%w: its transaction was over, and later ones may have been committed: %w", driver.ErrEscaped, cause)
}

// nothingFollowed reports whether the server itself has ended the transaction, as by a deadlock, and
// the handler has used no table since. It needs both of these:
//
//   - No transaction is in progress. Otherwise its isolation cannot be set.
//   - The session can write, although later transactions are read-only. Each COMMIT and ROLLBACK, and
//     all that commits by the way, takes the access of the next transaction from the settings. The
//     loss by itself does not.
func (g *mysqlGuard) nothingFollowed(ctx context.Context, t *joinedTx) bool {
	if t.session.Exec(ctx, "SET TRANSACTION ISOLATION LEVEL REPEATABLE READ") != nil || t.session.Exec(ctx, g.joined.statements.ping) != nil {
		return false
	}
	var unchanged bool
	err := t.tx().QueryRowContext(ctx, g.settings).Scan(&unchanged)
	return err == nil && unchanged
}

// leftPending reports whether the pending record was committed. It may be unknown by now. It
// rolls back first, because only a new transaction sees what is committed. It leaves no lock, of the handler or of its
// own at SERIALIZABLE, that would keep the outcome from being recorded.
func (g *mysqlGuard) leftPending(ctx context.Context, t *joinedTx) (bool, error) {
	_ = t.session.Rollback(ctx) // does nothing if the handler has called Commit
	var q querier = databaseSQL(t.session).conn
	if t.session.Exec(ctx, "ROLLBACK") != nil {
		q = g.joined.db
	}
	var n int
	err := q.QueryRowContext(ctx, g.joined.joined.left, t.id[:], t.attempt.Nonce[:]).Scan(&n)
	for _, statement := range []string{"ROLLBACK", "UNLOCK TABLES"} {
		_ = t.session.Exec(ctx, statement) // on a lost connection the server does both
	}
	return n > 0, err
}

// rowsOpen reports whether a statement was not sent because rows are open. The driver has a value for that, as below.
func rowsOpen(err error) bool { return strings.Contains(err.Error(), "busy buffer") }

// connectionLost reports whether an error is of a connection that is over. The server has answered
// with a number otherwise.
func connectionLost(err error) bool {
	switch sqldialect.MySQLNumber(err) {
	case 0:
		// The driver has a value for the second error, and an import of the driver would link it into
		// services on other databases.
		return errors.Is(err, sqldriver.ErrBadConn) || strings.Contains(err.Error(), "invalid connection")
	case 1053, 1927, 3169, 4031: // ER_SERVER_SHUTDOWN, ER_CONNECTION_KILLED, ER_SESSION_WAS_KILLED, ER_CLIENT_INTERACTION_TIMEOUT
		return true
	}
	return false
}

// kept reads the warnings of a rollback. Tables without transactions keep what was written to them, and
// so a retry would write it again. The error wraps driver.ErrEscaped then.
func (g *mysqlGuard) kept(ctx context.Context, t *joinedTx) error {
	rows, err := databaseSQL(t.session).conn.QueryContext(ctx, "SHOW WARNINGS")
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		var level, message string
		var number int
		if err := rows.Scan(&level, &number, &message); err != nil {
			return err
		}
		if number == 1196 { // ER_WARNING_NOT_COMPLETE_ROLLBACK
			return fmt.Errorf("%w: it wrote to a table without transactions, such as one of MyISAM, which keeps that: use ENGINE=InnoDB", driver.ErrEscaped)
		}
	}
	return rows.Err()
}
