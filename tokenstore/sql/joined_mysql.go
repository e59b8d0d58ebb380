package sqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
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
	look      string // at a key, its record and the time, without waiting
	set, undo string // what the session has for itself during an attempt
	settings  string // reads whether the session still has them
	idle      string // an expression: for how many seconds a transaction may be idle
	compounds compounds
}

func newMySQLGuard(ctx context.Context, j *Joined) (guard, error) {
	// With interpolateParams the driver writes many bytes as two, and the server closes the
	// connection, and with it the transaction, after a statement that is too long.
	j.longest /= 2
	j.looks = true
	if j.halfOnTimeout && !j.strict {
		j.log.WarnContext(ctx, "tokenstore/sql: innodb_rollback_on_timeout is off: a handler that ignores a lock time-out commits the rest of its writes, and nothing tells. Open the pool with sqlstore.OpenStrict or sqlstore.Strict, which refuse that")
	}
	j.joined = newJoinedStatements(j.names, joinedForms{})
	readOnly := "transaction_read_only"
	if j.mariaDB { // it has that name since 11.1, and MySQL has no other name since 8.0.3
		readOnly = "tx_read_only"
	}
	share, idle := "FOR SHARE", "@@SESSION.wait_timeout"
	if j.mariaDB {
		share = "LOCK IN SHARE MODE"
		idle = "LEAST(@@SESSION.wait_timeout, COALESCE(NULLIF(@@SESSION.idle_transaction_timeout, 0), @@SESSION.wait_timeout)," +
			" COALESCE(NULLIF(@@SESSION.idle_write_transaction_timeout, 0), @@SESSION.wait_timeout))"
	}
	g := &mysqlGuard{joined: j, idle: idle,
		// A look that asked for the right to write would take the read lock of a backup for another attempt.
		look: j.names.sql("SELECT CONNECTION_ID(), " + mysqlServer + ", " + idle + ", " + ofRecord + " FROM (SELECT 1 AS one) o LEFT JOIN {records} r ON r.k = ? " + share + " NOWAIT"),
		set: "SET @idem_wait_timeout = @@SESSION.wait_timeout, @idem_read_only = @@SESSION." + readOnly +
			", SESSION autocommit = 0, SESSION " + readOnly + " = 1, SESSION wait_timeout = ",
		settings: "SELECT @@SESSION.autocommit = 0 AND @@SESSION." + readOnly + " = 1 AND @@SESSION.completion_type = 'NO_CHAIN'",
		undo:     "SET SESSION autocommit = 1, SESSION " + readOnly + " = @idem_read_only, SESSION wait_timeout = @idem_wait_timeout"}
	g.compounds = newCompounds(j, g)
	return g, nil
}

func (g *mysqlGuard) claim(driver.KeyID) bool { return true }
func (g *mysqlGuard) unclaim(driver.KeyID)    {}

// before looks at the key without waiting, which an INSERT cannot do there.
func (g *mysqlGuard) before(ctx context.Context, t *joinedTx, p *pending) (held bool, err error) {
	if _, later := t.session.(*compoundSession); later {
		return false, nil
	}
	s := databaseSQL(t.session)
	seen, err := g.lookAt(ctx, s.conn, t.id, &p.seen)
	switch {
	case g.joined.dialect.Fault(err) == sqldialect.Busy:
		return true, nil
	case err != nil:
		return false, err
	}
	t.started = time.UnixMicro(p.seen.now).UTC()
	g.note(t, s, seen)
	return false, nil
}

// mysqlServer is an expression that tells a server from the others behind the same address.
const mysqlServer = "CONCAT_WS(' ', @@hostname, @@port, @@server_id)"

// mysqlLook is what a look at a key sees beside its record.
type mysqlLook struct {
	thread uint64 // the number of the connection
	server string
	idle   int64 // for how many seconds a transaction may be idle
}

func (g *mysqlGuard) lookAt(ctx context.Context, q querier, id driver.KeyID, f *found) (seen mysqlLook, err error) {
	err = q.QueryRowContext(ctx, g.look, id[:]).Scan(seen.targets(f)...)
	return seen, err
}

func (seen *mysqlLook) targets(f *found) []any {
	return append([]any{&seen.thread, &seen.server, &seen.idle}, f.targets()...)
}

// killQuery ends the statement that runs in a connection, and not its transaction. It asks through another
// connection, which has to be one to the same server. Every user may do this to their own connections.
func (g *mysqlGuard) killQuery(ctx context.Context, seen mysqlLook) error {
	conn, err := g.joined.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool
	var server string
	if err := conn.QueryRowContext(ctx, "SELECT "+mysqlServer).Scan(&server); err != nil {
		return err
	}
	if server != seen.server {
		return fmt.Errorf("the pool has a connection to %s, and the statement runs on %s", server, seen.server)
	}
	_, err = conn.ExecContext(ctx, "KILL QUERY "+strconv.FormatUint(seen.thread, 10))
	return err
}

func (g *mysqlGuard) begin(ctx context.Context, t *joinedTx) error {
	if s, ok := t.session.(*compoundSession); ok {
		return g.beginAtOnce(ctx, t, s)
	}
	s := databaseSQL(t.session)
	var seen mysqlLook
	err := s.conn.QueryRowContext(ctx, "SELECT CONNECTION_ID(), "+mysqlServer+", "+g.idle).Scan(&seen.thread, &seen.server, &seen.idle)
	if err == nil {
		g.note(t, s, seen)
		err = t.session.Begin(ctx, g.joined.isolation)
	}
	if err == nil {
		err = g.ready(ctx, t)
	}
	if err == nil {
		_, err = t.tx().ExecContext(ctx, "SAVEPOINT "+t.savepoint())
	}
	return err
}

// note notes what a look at a connection has seen.
func (g *mysqlGuard) note(t *joinedTx, s *sqlSession, seen mysqlLook) {
	t.idle = min(t.idle, time.Duration(seen.idle)*time.Second) // a shorter limit of the DBA stays
	s.interrupt = func(ctx context.Context) error { return g.killQuery(ctx, seen) }
}

// ready sets the session. This comes after BEGIN, which would be read-only otherwise, and it
// commits nothing.
func (g *mysqlGuard) ready(ctx context.Context, t *joinedTx) error {
	t.state = true
	_, err := t.tx().ExecContext(ctx, g.set+strconv.Itoa(int((t.idle+time.Second-1)/time.Second)))
	return err
}

func (g *mysqlGuard) intact(*joinedTx) (statement string, args []any) { return "SELECT 1", nil }

func (g *mysqlGuard) after(ctx context.Context, t *joinedTx) error {
	if t.state != true {
		return nil
	}
	return t.session.Exec(ctx, g.undo)
}

func (g *mysqlGuard) held(ctx context.Context, id driver.KeyID) (bool, error) {
	_, err := g.lookAt(ctx, g.joined.db, id, new(found))
	if g.joined.dialect.Fault(err) == sqldialect.Busy {
		return true, nil
	}
	return false, err
}

func (g *mysqlGuard) take(ctx context.Context, t *joinedTx, p *pending, from *driver.Record) (taken, waited bool, err error) {
	if s, ok := t.session.(*compoundSession); ok {
		taken, err := g.takeAtOnce(ctx, t, s, p, from)
		return taken, false, err
	}
	if err := g.ready(ctx, t); err != nil {
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
	switch err := g.first(ctx, t); {
	case errors.Is(err, driver.ErrEscaped):
		return err
	case err != nil && !errors.Is(err, ErrStatementOpen):
		return g.lost(ctx, t, err, true)
	}
	return g.rollBack(ctx, t)
}

// rollBack reads the warnings of the rollback, too. A connection that is not known to be rolled back is closed.
func (g *mysqlGuard) rollBack(ctx context.Context, t *joinedTx) error {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	switch err := t.session.Rollback(ctx); {
	case errors.Is(err, sql.ErrTxDone):
		return nil
	case err != nil:
		t.unfit = true
		return err
	}
	return g.kept(ctx, t)
}

// first removes the savepoint. The error is nil if the transaction is still the first one. A statement of a
// goroutine of the handler is waited for, and then ended. The error is ErrStatementOpen if the transaction is the
// first one then, and wraps driver.ErrEscaped too if the statement goes on, so that nothing can be found out.
func (g *mysqlGuard) first(ctx context.Context, t *joinedTx) error {
	s := databaseSQL(t.session)
	wait, cancel := half(ctx)
	_, err := s.execTx(wait, t.releaseSavepoint())
	cancel()
	if s.stuck == nil {
		return err
	}
	s.Interrupt()
	wait, cancel = context.WithTimeout(context.WithoutCancel(ctx), cleanUpTimeout)
	defer cancel()
	switch _, err := s.execTx(wait, t.releaseSavepoint()); {
	case s.stuck != nil:
		return fmt.Errorf("%w: nothing can be found out: %w", driver.ErrEscaped, ErrStatementOpen)
	case err != nil:
		return err
	}
	return ErrStatementOpen
}

func (t *joinedTx) releaseSavepoint() string { return "RELEASE SAVEPOINT " + t.savepoint() }

func (g *mysqlGuard) complete(ctx context.Context, t *joinedTx, c *completion) error {
	switch err := g.first(ctx, t); {
	case errors.Is(err, ErrStatementOpen):
		return err
	case err != nil:
		return g.lost(ctx, t, err, false)
	case c == nil:
		return nil
	}
	n, err := t.execTx(ctx, g.joined.joined.complete, t.completeArgs(c)...)
	if err == nil && n != 1 {
		return errNoRecord
	}
	return err
}

// commit sends COMMIT past the sql.Tx, because the driver's COMMIT knows no context. What the
// handler still sends over the transaction is rolled back after it, or refused by a connection of [Strict]. If the handler has ended the
// transaction meanwhile, there may have been nothing left to commit, and the error leaves that open.
func (g *mysqlGuard) commit(ctx context.Context, t *joinedTx) error {
	if s := databaseSQL(t.session); s.strict != nil {
		_, err := s.end(ctx, "COMMIT")
		return err
	}
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
