package sqlstore

import (
	"context"
	"database/sql"
	sqldriver "database/sql/driver"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

// This file sends the statements of joined_mysql.go to MariaDB in two compound ones, BEGIN NOT ATOMIC … END. One begins the
// transaction and takes the key, and one completes the record and commits. The server runs the statements inside one after
// the other and stops at the first that fails. database/sql would send BEGIN and COMMIT by themselves. So a connection has to be one
// of [Strict], which leaves them out.

// compounds are the two statements. Their arguments are in the order of takeAtOnce and completeAndCommit.
type compounds struct {
	insert compound // takes a key without a record, or returns its record and begins nothing
	update compound // takes the key of a record that lets an attempt start
	end    compound
	begin  compound // without a record
	commit compound
}

// notOneRow is the number of the error if a statement inside has not changed one row. No server has it.
const notOneRow = 45000

func newCompounds(j *Joined, g *mysqlGuard) compounds {
	isolation := ""
	if j.isolation != sql.LevelDefault {
		isolation = "SET TRANSACTION ISOLATION LEVEL " + strings.ToUpper(j.isolation.String()) + "; "
	}
	const oneRow = "IF ROW_COUNT() <> 1 THEN SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = 45000; END IF; "
	begin := func(steps string) string {
		return isolation + "START TRANSACTION; " + g.set + "LEAST(?, " + g.idle + "); " +
			// A session in which this fails is as before.
			"BEGIN DECLARE EXIT HANDLER FOR SQLEXCEPTION BEGIN ROLLBACK; " + g.undo + "; RESIGNAL; END; " +
			steps + "SAVEPOINT ?; END; " +
			// It reads no table. Otherwise the handler would see the data of this time, and not of its first statement.
			"SELECT CONNECTION_ID(), " + mysqlServer + ", @@SESSION.wait_timeout, " + j.dialect.Clock + ", NULL, 0" + strings.Repeat(", NULL", len(columns)) + "; "
	}
	take := func(statement string) string { return "?" + statement + "; " + oneRow }
	const commit = "SET @idem_step = '? committing'; COMMIT AND NO CHAIN NO RELEASE; "
	return compounds{
		// The condition of an IF would wait for a lock of the row, and SELECT … INTO does not.
		insert: newCompound("BEGIN NOT ATOMIC DECLARE idem_there INT; " + j.names.sql("SELECT count(*) INTO idem_there FROM {records} WHERE k = ?; "+
			"IF idem_there THEN SELECT 0, '', 0, "+ofRecord+" FROM {records} AS r WHERE r.k = ?; ") +
			"ELSE " + begin(take(j.joined.insert)) + "END IF; END"),
		update: newCompound("BEGIN NOT ATOMIC " + begin(take(j.joined.update)) + "END"),
		// An error tells by the variable how far the server has come.
		end: newCompound("BEGIN NOT ATOMIC RELEASE SAVEPOINT ?; SET @idem_step = '? released'; " + j.joined.complete + "; " + oneRow +
			commit + g.undo + "; END"),
		begin:  newCompound("BEGIN NOT ATOMIC " + begin("") + "END"),
		commit: newCompound("BEGIN NOT ATOMIC RELEASE SAVEPOINT ?; " + commit + g.undo + "; END"),
	}
}

// compound is the text of a statement between its arguments.
type compound []string

// newCompound splits a text at each question mark that is not in a name.
func newCompound(text string) (c compound) {
	from, quoted := 0, false
	for i := range len(text) {
		switch {
		case text[i] == '`':
			quoted = !quoted
		case text[i] == '?' && !quoted:
			c = append(c, text[from:i])
			from = i + 1
		}
	}
	return append(c, text[from:])
}

// with returns the text with arguments: bytes, numbers, and strings as SQL. A driver would prepare a statement with arguments of
// its own first.
func (c compound) with(args ...any) string {
	var b strings.Builder
	for i, piece := range c {
		b.WriteString(piece)
		if i == len(args) {
			break
		}
		switch v := args[i].(type) {
		case []byte:
			if v == nil {
				b.WriteString("NULL")
			} else {
				fmt.Fprintf(&b, "x'%x'", v)
			}
		case string:
			b.WriteString(v)
		default:
			fmt.Fprintf(&b, "%d", v)
		}
	}
	return b.String()
}

// compoundSession is a connection of [Strict] to MariaDB.
type compoundSession struct{ *sqlSession }

// begun says that a statement has begun the transaction.
func (s *compoundSession) begun(ctx context.Context) error {
	err := s.conn.Raw(func(any) error {
		s.strict.begun = true
		return nil
	})
	if err != nil {
		return err
	}
	return s.Begin(ctx, sql.LevelDefault)
}

// takeAtOnce is take with everything that comes before. If the key has a record, p has that, and nothing has begun.
func (g *mysqlGuard) takeAtOnce(ctx context.Context, t *joinedTx, s *compoundSession, p *pending, from *driver.Record) (taken bool, err error) {
	wait := ""
	if !p.free { // a duplicate need not wait to learn that the key is taken
		wait = "SET STATEMENT innodb_lock_wait_timeout = 0, lock_wait_timeout = 0 FOR "
	}
	args := []any{int((t.idle + time.Second - 1) / time.Second), wait}
	var statement string
	if from == nil {
		args = append(append([]any{p.id[:], p.id[:]}, args...), g.joined.insertArgs(p)...)
		statement = g.compounds.insert.with(append(args, t.savepoint())...)
	} else {
		args = append(args, g.joined.updateArgs(p, from)...)
		statement = g.compounds.update.with(append(args, t.savepoint())...)
	}
	var seen mysqlLook
	err = s.conn.QueryRowContext(ctx, statement).Scan(seen.targets(&p.seen)...)
	switch fault := g.joined.dialect.Fault(err); {
	case err == nil && p.seen.there, errors.Is(err, sql.ErrNoRows), sqldialect.MySQLNumber(err) == notOneRow: // the record is there, was removed meanwhile, or has changed
		return false, nil
	case err == nil:
		t.started = time.UnixMicro(p.seen.now).UTC()
		err = g.hasBegun(ctx, t, s, seen)
		return err == nil, err
	case fault == sqldialect.Busy, fault == sqldialect.Duplicate, fault == sqldialect.Conflict, fault == sqldialect.ReadOnly:
		return false, err
	}
	t.unfit = true                            // the server may not have cleaned up, as after KILL QUERY, or may still be at it
	if errors.Is(err, sqldriver.ErrBadConn) { // a lost connection of the pool; nothing was sent
		err = nil
	}
	return false, err
}

// hasBegun notes the transaction that a statement has begun.
func (g *mysqlGuard) hasBegun(ctx context.Context, t *joinedTx, s *compoundSession, seen mysqlLook) error {
	g.note(t, s.sqlSession, seen)
	if err := s.begun(ctx); err != nil {
		t.unfit = true
		return err
	}
	t.state = true
	return nil
}

// beginAtOnce is begin with everything that comes before.
func (g *mysqlGuard) beginAtOnce(ctx context.Context, t *joinedTx, s *compoundSession) error {
	var seen mysqlLook
	statement := g.compounds.begin.with(int((t.idle+time.Second-1)/time.Second), t.savepoint())
	if err := s.conn.QueryRowContext(ctx, statement).Scan(seen.targets(new(found))...); err != nil {
		t.unfit = true // the server may not have cleaned up
		return err
	}
	return g.hasBegun(ctx, t, s, seen)
}

func (g *mysqlGuard) completeAndCommit(ctx context.Context, t *joinedTx, c *completion) (able, sent bool, err error) {
	s, ok := t.session.(*compoundSession)
	if !ok || s.stuck != nil {
		return false, false, nil
	}
	savepoint := t.savepoint()
	statement := g.compounds.commit.with(savepoint, savepoint)
	if c != nil {
		args := append([]any{savepoint, savepoint}, t.completeArgs(c)...)
		statement = g.compounds.end.with(append(args, savepoint)...)
	}
	sent, err = s.end(ctx, statement)
	switch number := sqldialect.MySQLNumber(err); {
	case err == nil:
		t.state = nil // the session is as before
		return true, true, nil
	case errors.Is(err, ErrStatementOpen), !sent && s.stuck != nil, number == 1064: // ER_PARSE_ERROR, in a sql_mode of the handler
		return false, false, nil
	case !sent, rowsOpen(err):
		return true, false, g.lost(ctx, t, err, false)
	case connectionLost(err):
		return true, true, fmt.Errorf("%w: %w", errConnectionLostAtEnd, err)
	case number == 0:
		return true, true, err
	}
	// The server has answered, and the session tells what it was at.
	step := ""
	if s.QueryRow(ctx, "SELECT coalesce(@idem_step, '')", nil, &step) != nil {
		return true, true, err
	}
	switch step {
	case savepoint + " committing":
		return true, true, err
	case savepoint + " released":
		if sqldialect.MySQLNumber(err) == notOneRow {
			err = errNoRecord
		}
		return true, false, err
	}
	return true, false, g.lost(ctx, t, err, false)
}
