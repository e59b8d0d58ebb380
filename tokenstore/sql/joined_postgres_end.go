package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// This file has how a transaction of PostgreSQL ends. A handler that has ended it by a statement,
// and then wrote on, has committed each of these writes. The guard has refused the record then, so
// it is as absent as after a rollback. What tells the two apart is gone once the connection is
// closed. So the state of the protocol is looked at first, which takes no round trip and cannot
// fail. The state does not tell the transaction from one that the handler has begun in its place. The
// number of the transaction does.

// escaped reports whether the transaction has ended before its time. A transaction with a failed
// statement can only be rolled back.
func (g *postgresGuard) escaped(ctx context.Context, t *joinedTx) error {
	status, err := g.status(ctx, t)
	switch {
	case err != nil:
		return err
	case status == TxFailed:
		return g.failed(ctx, t)
	}
	var same bool
	err = t.session.QueryRow(ctx, "SELECT coalesce(pg_catalog.pg_current_xact_id_if_assigned()::text = $1, false)", []any{t.state.(*postgresState).xid}, &same)
	switch {
	case err == nil && !same:
		return errOtherTransaction
	case sqldialect.SQLState(err) == inFailed: // the driver does not tell its state
		return g.failed(ctx, t)
	}
	return err
}

const inFailed = "25P02" // in_failed_sql_transaction

// failed looks whether the first transaction has come to nothing, once a statement of this one has failed. A record keeps the handler from
// ending the first by COMMIT. Without a record it may have, and what it has begun then can fail as well. The session does not tell
// any more. What the handler has committed after a ROLLBACK of its own stays unseen.
func (g *postgresGuard) failed(ctx context.Context, t *joinedTx) error {
	if !t.keyless {
		return nil
	}
	ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	aborted := false
	err := g.joined.db.QueryRowContext(ask, "SELECT coalesce(pg_catalog.pg_xact_status($1::pg_catalog.xid8) = 'aborted', false)", t.state.(*postgresState).xid).Scan(&aborted)
	if err != nil || !aborted {
		return errors.Join(errOtherTransaction, err)
	}
	return nil
}

var errOtherTransaction = fmt.Errorf("%w: the transaction is not the first one any more", driver.ErrEscaped)

// status is that of the session. The error wraps driver.ErrEscaped if the transaction has ended, is
// sql.ErrTxDone if the handler ended it by the methods of its type, and wraps ErrInUse if
// nothing can be sent.
func (g *postgresGuard) status(ctx context.Context, t *joinedTx) (TxStatus, error) {
	look, cancel := half(ctx)
	status, err := t.session.Status(look)
	cancel()
	if err != nil && status != TxIdle {
		ask, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout) // without an answer the outcome is unknown
		another, known := g.elsewhere(ask, t)
		cancel()
		if !known { // without the goroutine in the way, the session itself tells
			t.session.Interrupt()
			look, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
			defer cancel()
			status, _ = t.session.Status(look)
			if status != TxIdle && errors.Is(err, ErrInUse) {
				return status, fmt.Errorf("%w: nothing can be found out: %w", driver.ErrEscaped, err)
			}
		}
		if another {
			return status, errors.Join(errOtherTransaction, err)
		}
	}
	if status == TxIdle {
		if end := t.session.Rollback(ctx); errors.Is(end, sql.ErrTxDone) {
			return status, end
		}
		return status, fmt.Errorf("%w: no transaction is open", driver.ErrEscaped)
	}
	return status, err
}

// elsewhere asks through another connection whether the session of the handler is in another
// transaction by now.
func (g *postgresGuard) elsewhere(ctx context.Context, t *joinedTx) (another, known bool) {
	s := t.state.(*postgresState)
	err := g.joined.db.QueryRowContext(ctx, "SELECT state IS NOT NULL, backend_xid IS DISTINCT FROM $2::pg_catalog.xid8::pg_catalog.xid"+
		" FROM pg_catalog.pg_stat_get_activity($1::integer)", s.pid, s.xid).Scan(&known, &another)
	return another && known, err == nil && known
}

func (g *postgresGuard) rollBack(context.Context, *joinedTx) error { return nil }

func (g *postgresGuard) complete(ctx context.Context, t *joinedTx, c *completion) error {
	args, err := g.mayComplete(ctx, t, c)
	if err != nil {
		return err
	}
	statement := g.joined.joined.complete
	if c == nil {
		statement = g.first
	}
	found := g.lookLater(ctx, t)
	err = t.session.QueryRow(ctx, statement, args, new(any), new(any))
	if errors.Is(err, sql.ErrNoRows) {
		err = errNoRecord
	}
	return g.completed(ctx, t, err, found())
}

func (g *postgresGuard) completeAndCommit(ctx context.Context, t *joinedTx, c *completion) (able, sent bool, err error) {
	session, ok := t.session.(PipelinedSession)
	if !ok {
		return false, false, nil
	}
	args, err := g.mayComplete(ctx, t, c)
	if err != nil {
		return true, false, err
	}
	statement, to := g.only, []any{new(int)}
	if c == nil {
		statement, to = g.first, append(to, new(any))
	}
	found := g.lookLater(ctx, t)
	skipped, err := session.RowCommit(ctx, statement, args, to...)
	another := found()
	if !skipped {
		s := t.state.(*postgresState)
		if s.lock = min(s.lock, lockUnsure); err == nil {
			s.lock = lockFree
		}
		return true, true, err
	}
	return true, false, g.completed(ctx, t, err, another)
}

// mayComplete returns the arguments of the statement that completes the record, unless that is known to fail.
func (g *postgresGuard) mayComplete(ctx context.Context, t *joinedTx, c *completion) ([]any, error) {
	if _, err := g.status(ctx, t); err != nil {
		return nil, err
	}
	if c == nil {
		return []any{t.state.(*postgresState).xid}, nil
	}
	return append(t.completeArgs(c), t.state.(*postgresState).lock == lockHeld, g.lock(t.id)), nil
}

// completed says what an error of that statement means. another says that the session was in another transaction.
func (g *postgresGuard) completed(ctx context.Context, t *joinedTx, err error, another bool) error {
	if sqldialect.SQLState(err) == "22012" { // division_by_zero
		err = errNoRecord
		if t.keyless {
			err = errOtherTransaction
		}
	}
	switch {
	case err == nil:
		t.state.(*postgresState).lock = lockFree
		return nil
	case sqldialect.SQLState(err) == inFailed:
		if other := g.failed(ctx, t); other != nil {
			return other
		}
		return fmt.Errorf("%w: %w", driver.ErrSwallowed, err)
	case another && !errors.Is(err, errNoRecord):
		return errors.Join(errOtherTransaction, err)
	}
	return err
}

// lookLater looks what transaction the session is in while its statement waits, for example for
// others that have locked the table. Once the statement has failed it is too late. found
// reports whether that was another transaction.
func (g *postgresGuard) lookLater(ctx context.Context, t *joinedTx) (found func() bool) {
	wait, cancel := half(ctx)
	result := make(chan bool, 1)
	stop := context.AfterFunc(wait, func() {
		another, _ := g.elsewhere(ctx, t)
		result <- another
	})
	return func() bool {
		defer cancel()
		return !stop() && <-result
	}
}

// half returns a context with half of the time that is left.
func half(ctx context.Context) (context.Context, context.CancelFunc) {
	end, ok := ctx.Deadline()
	if !ok {
		return context.WithCancel(ctx)
	}
	return context.WithDeadline(ctx, time.Now().Add(time.Until(end)/2))
}

func (g *postgresGuard) commit(ctx context.Context, t *joinedTx) error { return t.session.Commit(ctx) }

func (g *postgresGuard) undone(err error) bool {
	switch state := sqldialect.SQLState(err); {
	case strings.HasPrefix(state, "23"), strings.HasPrefix(state, "40"): // constraint, rollback
		return true
	case state == "":
		// The answer to COMMIT was ROLLBACK. pgx has a value for this error, and an import of
		// pgx would link it into services on other databases.
		return strings.Contains(err.Error(), "commit unexpectedly resulted in rollback")
	}
	return false
}

// sessionEnded reports whether PostgreSQL has said that it ends the session.
func sessionEnded(err error) bool {
	switch sqldialect.SQLState(err) {
	case "57P01", "57P02", "57P05", "25P03", "25P04": // admin_shutdown, crash_shutdown, and time-outs of sessions and transactions
		return true
	}
	return false
}
