package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// joinedTx is the transaction of one attempt, or of a request without a key.
type joinedTx struct {
	joined  *Joined
	keyless bool // it has no record
	id      driver.KeyID
	req     driver.JoinedRequest
	attempt driver.Attempt
	started time.Time
	idle    time.Duration

	session Session
	release func()      // gives back the slot and the key
	given   atomic.Bool // the handler has tx
	state   any         // of the guard

	failed   error // of a statement over which the handler went on, with [Strict]
	finished bool
	unfit    bool // the connection must not be used any more
}

// tx is the transaction in the type of database/sql.
func (t *joinedTx) tx() *sql.Tx { return databaseSQL(t.session).tx }

// execTx runs a statement in the transaction of a handler that has returned.
func (t *joinedTx) execTx(ctx context.Context, statement string, args ...any) (n int64, err error) {
	return databaseSQL(t.session).execTx(ctx, statement, args...)
}

// changed is the number of changed rows.
func changed(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// cleanUpTimeout bounds what happens to a connection after the end of its transaction.
const cleanUpTimeout = 2 * time.Second

// Commit makes the record completed and commits the transaction. [driver.JoinedTx] has the errors.
func (t *joinedTx) Commit(ctx context.Context, s driver.Settlement) error {
	if t.keyless {
		return t.commit(ctx, nil)
	}
	var response []byte
	if s.Response != nil {
		var err error
		if response, err = s.Response.AppendBinary(nil); err != nil {
			return err
		}
	}
	if n := len(response); n > t.joined.longest {
		return fmt.Errorf("tokenstore/sql: commit: %w: it has %d bytes, and the database takes %d", driver.ErrResponseInvalid, n, t.joined.longest)
	}
	return t.commit(ctx, &completion{settlement: s.ID, response: response,
		resultTTL: wholeMicros(max(s.ResultTTL, t.req.ResultTTL)), keyTTL: wholeMicros(max(s.KeyTTL, s.ResultTTL, t.req.KeyTTL, t.req.ResultTTL))})
}

// commit commits what the record becomes by c with what the handler has written. c is nil without a record.
func (t *joinedTx) commit(ctx context.Context, c *completion) error {
	t.back(ctx)
	sent, err := t.conclude(ctx, c)
	if !sent {
		return t.fail(ctx, err)
	}
	if errors.Is(err, sql.ErrTxDone) { // a goroutine of the handler was first, and may have committed
		err = ErrHandlerEnded
	}
	t.finish(ctx, err != nil)
	switch {
	case err == nil:
		return nil
	case t.Conflict(err):
		return fmt.Errorf("tokenstore/sql: commit: %w: %w", driver.ErrConflict, err)
	case t.joined.guard.undone(err):
		return fmt.Errorf("tokenstore/sql: commit: %w: %w", driver.ErrRolledBack, err)
	}
	return fmt.Errorf("tokenstore/sql: commit: %w: %w", driver.ErrUnavailable, err) // it may have been committed
}

// conclude makes the record completed and commits. If sent is true, an error is that of COMMIT. Otherwise nothing is committed.
func (t *joinedTx) conclude(ctx context.Context, c *completion) (sent bool, err error) {
	g := t.joined.guard
	if t.failed == nil {
		if able, sent, err := g.completeAndCommit(ctx, t, c); able {
			return sent, err
		}
	}
	if err := g.complete(ctx, t, c); err != nil {
		return false, err
	}
	if t.failed != nil {
		return false, fmt.Errorf("%w: %w", driver.ErrSwallowed, t.failed)
	}
	return true, g.commit(ctx, t)
}

// back ends the handler's use of the transaction.
func (t *joinedTx) back(ctx context.Context) {
	if s := databaseSQL(t.session); s != nil && t.failed == nil {
		t.failed = s.back(ctx)
	}
}

// fail rolls back, because COMMIT was not sent, and returns the meaning of an error before it.
func (t *joinedTx) fail(ctx context.Context, err error) error {
	if errors.Is(err, driver.ErrEscaped) {
		return t.escape(ctx, err)
	}
	if kept := t.joined.guard.rollBack(ctx, t); errors.Is(kept, driver.ErrEscaped) {
		return t.escape(ctx, errors.Join(kept, err))
	}
	t.finish(ctx, true)
	switch {
	case errors.Is(err, driver.ErrSwallowed):
		return err
	case errors.Is(err, sql.ErrTxDone) && t.keyless && databaseSQL(t.session) != nil && !t.joined.dialect.File:
		return fmt.Errorf("%w: %w", driver.ErrEscaped, ErrHandlerEnded) // no record has refused a COMMIT
	case errors.Is(err, sql.ErrTxDone):
		return fmt.Errorf("%w: %w", driver.ErrSwallowed, ErrHandlerEnded)
	case t.Conflict(err):
		return fmt.Errorf("tokenstore/sql: complete: %w: %w", driver.ErrConflict, err)
	case t.keyless && (errors.Is(err, errConnectionLost) || sessionEnded(err)): // which hides a COMMIT of the handler, and no record tells of it
	case errors.Is(err, ErrInUse), t.joined.dialect.Spoken(err):
		return fmt.Errorf("tokenstore/sql: complete: %w: %w", driver.ErrRolledBack, err)
	}
	return fmt.Errorf("tokenstore/sql: complete: %w: %w", driver.ErrUnavailable, err) // the engine looks what became of it
}

// escape ends what the handler has begun in place of the transaction, because its locks could keep
// the outcome from being recorded as unknown. Release gives the connection back, and until then a
// lock of the session holds the key.
func (t *joinedTx) escape(ctx context.Context, err error) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if end := t.session.Rollback(ctx); end != nil && !errors.Is(end, sql.ErrTxDone) {
		t.unfit = true
	}
	return err
}

// Rollback rolls the transaction back. [driver.JoinedTx] has the errors.
func (t *joinedTx) Rollback(ctx context.Context) error {
	t.back(ctx)
	if t.given.Load() {
		if err := t.joined.guard.escaped(ctx, t); errors.Is(err, driver.ErrEscaped) {
			return t.escape(ctx, err)
		}
	}
	t.finish(ctx, true)
	return nil // nothing was committed, and a lost connection cannot commit any more
}

// Release finishes a transaction that the handler had ended by itself.
func (t *joinedTx) Release(ctx context.Context) {
	if !t.finished {
		t.finish(ctx, true)
	}
}

// Check confirms the transaction. [driver.JoinedTx] has the errors.
func (t *joinedTx) Check(ctx context.Context) (time.Duration, error) {
	switch err := t.intact(ctx); {
	case errors.Is(err, driver.ErrEscaped):
		return 0, err
	case err != nil:
		return 0, t.joined.failed("check", err)
	}
	return t.idle, nil
}

// intact looks for the record of the attempt in the transaction. It does not notice DDL on MySQL,
// because it leaves the savepoint and those of the handler alone. Without a record it notices only a lost connection there.
func (t *joinedTx) intact(ctx context.Context) error {
	statement, args, missing := t.joined.joined.intact, []any{t.id[:], t.attempt.Nonce[:]}, errNoRecord
	if t.keyless {
		statement, args = t.joined.guard.intact(t)
		missing = errOtherTransaction
	}
	var n int
	err := t.session.QueryRow(ctx, statement, args, &n)
	if err == nil && n != 1 {
		return missing
	}
	return err
}

var errNoRecord = fmt.Errorf("%w: its record is not there any more", driver.ErrEscaped)

// Conflict reports whether an error is a serialisation failure or a deadlock.
func (t *joinedTx) Conflict(err error) bool {
	return err != nil && t.joined.dialect.Fault(err) == sqldialect.Conflict
}

// finish ends the transaction if it is open, and gives the connection back.
func (t *joinedTx) finish(ctx context.Context, open bool) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	t.finished = true
	broken := false
	if open {
		err := t.session.Rollback(ctx)
		broken = err != nil && !errors.Is(err, sql.ErrTxDone)
	}
	t.close(ctx, broken)
}

// close gives the connection back to the pool. A connection that is not fit for others is closed.
func (t *joinedTx) close(ctx context.Context, broken bool) {
	release := t.release
	t.release = nil
	t.session.Close(broken || t.unfit || t.joined.guard.after(ctx, t) != nil, func() {
		if release != nil {
			release()
		}
	})
}

// Probe looks what the primary has of a key, after every transaction with the key has ended. The
// error wraps driver.ErrUnavailable.
func (j *Joined) Probe(ctx context.Context, id driver.KeyID) (driver.Record, error) {
	err := j.mayWrite("probe")
	if err == nil {
		err = j.probe(ctx, id)
	}
	if err != nil {
		return driver.Record{}, j.failed("probe", err)
	}
	return j.Get(ctx, id)
}

// probe tries to take the key, waiting for other transactions, and rolls that back. A replica
// refuses it.
func (j *Joined) probe(ctx context.Context, id driver.KeyID) error {
	tx, err := j.begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // none of it is committed in any case
	_, err = tx.ExecContext(ctx, j.joined.insert, j.insertArgs(&pending{id: id, next: 1, req: driver.JoinedRequest{Nonce: driver.NewNonce()}})...)
	if err != nil && j.dialect.Fault(err) != sqldialect.Duplicate {
		return err
	}
	var k []byte
	err = tx.QueryRowContext(ctx, j.joined.lock, id[:]).Scan(&k)
	if errors.Is(err, sql.ErrNoRows) {
		return nil
	}
	return err
}
