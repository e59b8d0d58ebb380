package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// mysqlGuard is the [guard] of MySQL and MariaDB.
//
// A deadlock ends the whole transaction there. With autocommit on, the handler's next statement
// would commit by itself, so autocommit is off for the whole attempt. And the session makes all
// later transactions read-only, so a handler that has sent ROLLBACK cannot pay in the next one.
// A savepoint with a secret name shows whether the transaction is still the first one, because
// COMMIT, ROLLBACK, DDL and a deadlock remove it.
//
// After a deadlock the handler can pay and commit: the transaction that the server begins then is
// not read-only. So without the savepoint the outcome is unknown, unless joined_mysql_lost.go has
// the proof that nothing was committed.
type mysqlGuard struct {
	joined    *Joined
	look      string // at a key and at the time, without waiting
	set, undo string // what the session has for itself during an attempt
	settings  string // reads whether the session still has them
}

func newMySQLGuard(j *Joined) guard {
	j.joined = newJoinedStatements(j.names, joinedForms{})
	readOnly := "transaction_read_only"
	if j.mariaDB { // it has that name since 11.1, and MySQL has no other name since 8.0.3
		readOnly = "tx_read_only"
	}
	share := "FOR SHARE"
	if j.mariaDB {
		share = "LOCK IN SHARE MODE"
	}
	return &mysqlGuard{joined: j,
		// A look that asked for the right to write would take the read lock of a backup for another attempt.
		look: j.names.sql("SELECT {clock}, r.k FROM (SELECT 1 AS one) o LEFT JOIN {records} r ON r.k = ? " + share + " NOWAIT"),
		set: "SET @idem_wait_timeout = @@SESSION.wait_timeout, @idem_read_only = @@SESSION." + readOnly +
			", SESSION autocommit = 0, SESSION " + readOnly + " = 1, SESSION wait_timeout = ",
		settings: "SELECT @@SESSION.autocommit = 0 AND @@SESSION." + readOnly + " = 1",
		undo:     "SET SESSION autocommit = 1, SESSION " + readOnly + " = @idem_read_only, SESSION wait_timeout = @idem_wait_timeout"}
}

func (g *mysqlGuard) claim(idem.KeyID) bool { return true }
func (g *mysqlGuard) unclaim(idem.KeyID)    {}

// before looks whether the key is free without waiting, which an INSERT cannot do there.
func (g *mysqlGuard) before(ctx context.Context, t *joinedTx) (held bool, err error) {
	var now int64
	var k []byte
	err = t.session.(*sqlSession).conn.QueryRowContext(ctx, g.look, t.id[:]).Scan(&now, &k)
	switch {
	case g.joined.dialect.fault(err) == faultBusy:
		return true, nil
	case err != nil:
		return false, err
	}
	t.started = time.UnixMicro(now).UTC()
	return false, nil
}

func (g *mysqlGuard) after(ctx context.Context, t *joinedTx) error {
	if t.state != true {
		return nil
	}
	return t.session.Exec(ctx, g.undo)
}

func (g *mysqlGuard) held(ctx context.Context, id idem.KeyID) (bool, error) {
	var now int64
	var k []byte
	err := g.joined.db.QueryRowContext(ctx, g.look, id[:]).Scan(&now, &k)
	if g.joined.dialect.fault(err) == faultBusy {
		return true, nil
	}
	return false, err
}

// take first sets the session. This comes after BEGIN, which would be read-only otherwise, and it
// commits nothing.
func (g *mysqlGuard) take(ctx context.Context, t *joinedTx, p *pending, from *idem.Record) (taken, waited bool, err error) {
	t.state = true
	if _, err := t.tx().ExecContext(ctx, g.set+strconv.Itoa(int((t.idle+time.Second-1)/time.Second))); err != nil {
		return false, false, err
	}
	text, args := g.joined.joined.insert, g.joined.insertArgs(p)
	if from != nil {
		text, args = g.joined.joined.update, g.joined.updateArgs(p, from)
	}
	n, err := changed(t.tx().ExecContext(ctx, text, args...))
	if err != nil || n != 1 {
		return false, false, err
	}
	_, err = t.tx().ExecContext(ctx, "SAVEPOINT "+t.savepoint())
	return err == nil, false, err
}

// savepoint is a name that the handler does not use.
func (t *joinedTx) savepoint() string { return "idem_" + t.attempt.Nonce.String() }

// escaped confirms that the transaction is the first one, and rolls it back to see whether all of it
// can be rolled back.
func (g *mysqlGuard) escaped(ctx context.Context, t *joinedTx) error {
	if err := g.first(ctx, t); err != nil {
		return g.lost(ctx, t, err, true)
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	if err := t.session.Rollback(ctx); err != nil && !errors.Is(err, sql.ErrTxDone) {
		t.unfit = true
		return err
	}
	return g.kept(ctx, t)
}

// first removes the savepoint. The error is nil if the transaction is still the first one.
func (g *mysqlGuard) first(ctx context.Context, t *joinedTx) error {
	_, err := t.execTx(ctx, t.releaseSavepoint())
	return err
}

func (t *joinedTx) releaseSavepoint() string { return "RELEASE SAVEPOINT " + t.savepoint() }

func (g *mysqlGuard) complete(ctx context.Context, t *joinedTx, c *completion) error {
	if err := g.first(ctx, t); err != nil {
		return g.lost(ctx, t, err, false)
	}
	n, err := t.execTx(ctx, g.joined.joined.complete, t.completeArgs(c)...)
	if err == nil && n != 1 {
		err = fmt.Errorf("%w: its record is not there any more", idem.ErrEscaped)
	}
	return err
}

// commit sends COMMIT past the sql.Tx, because the driver's COMMIT knows no context. What the
// handler still sends over the transaction is rolled back after it. If the handler has ended the
// transaction meanwhile, there may have been nothing left to commit, and the error leaves that open.
func (g *mysqlGuard) commit(ctx context.Context, t *joinedTx) error {
	if err := t.session.Exec(ctx, "COMMIT"); err != nil {
		return err
	}
	err := t.session.Rollback(ctx)
	if errors.Is(err, sql.ErrTxDone) {
		return err
	}
	t.unfit = err != nil // it may still have autocommit off
	return nil
}

func (g *mysqlGuard) undone(error) bool { return false } // a conflict is told apart before
