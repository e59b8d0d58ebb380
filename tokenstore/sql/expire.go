package sqlstore

import (
	"bytes"
	"context"
	"database/sql"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/sqldialect"
)

const (
	// expiryBatch is how many rows one transaction removes. It holds their locks for some
	// milliseconds.
	expiryBatch = 500
	// clockTolerance is how far the clock of the database may be ahead of the process's.
	clockTolerance = time.Minute
	// expiryTimeout bounds one call of the background.
	expiryTimeout = 30 * time.Second
)

// ahead is how many microseconds the clock of the database, now, is ahead of the process's clock. It is
// 0 within a minute. A clock that jumps ahead forgets keys, so both have to say that a time is over.
func (s *Store) ahead(now int64) int64 {
	if by := now - time.Now().UnixMicro(); by > clockTolerance.Microseconds() {
		return by
	}
	return 0
}

// Expire removes up to most records, results and bindings whose time is over, and returns how
// many. If the clock of the database is ahead of the process's by more than a minute, the
// process's decides. They count as expired without it. It works in batches of 500, and several processes
// may call it at once. The error wraps driver.ErrUnavailable, or is [ErrReadOnly]. The batches
// before the error stay removed.
func (s *Store) Expire(ctx context.Context, most int) (removed int, err error) {
	if err := s.mayWrite("expire"); err != nil {
		return 0, err
	}
	now, err := s.Clock(ctx)
	if err != nil {
		return 0, err
	}
	ahead := s.ahead(now.UnixMicro())
	if ahead > 0 {
		s.log.WarnContext(ctx, "tokenstore/sql: the clock of the database is ahead of this process's; records are kept until both say that their time is over",
			"by", time.Duration(ahead)*time.Microsecond)
	}
	st := &s.statements
	for _, of := range []struct {
		due, lock string
		remove    []removal
	}{
		{st.due, st.lockDue, []removal{st.strip, st.remove}},
		{st.dueBindings, "", []removal{st.removeBindings}}, // no transaction stays open with one
	} {
		for removed < most {
			size := min(expiryBatch, most-removed)
			seen, n, err := s.expireBatch(ctx, size, ahead, of.due, of.lock, of.remove)
			removed += n
			if err != nil {
				return removed, s.failed("expire", err)
			}
			if seen < size || n == 0 { // n is 0 if others have all of these rows
				break
			}
		}
	}
	return removed, nil
}

// expireBatch reads the keys that are due, then changes their rows by the primary key and in
// its order, if they are still due. So it locks no row that is not due. It passes over the rows
// that others have locked, such as a joined transaction whose handler takes its time.
func (s *Store) expireBatch(ctx context.Context, size int, ahead int64, due, lock string, remove []removal) (seen, removed int, err error) {
	keys, err := dueKeys(s.read.QueryContext(ctx, due, ahead, size))
	if err != nil || len(keys) == 0 {
		return 0, 0, err
	}
	seen = len(keys)
	tx, err := s.begin(ctx)
	if err != nil {
		return seen, 0, err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	if lock != "" {
		keys, err = dueKeys(tx.QueryContext(ctx, lock, append(padded(keys), ahead)...))
		if err != nil || len(keys) == 0 {
			return seen, 0, s.unlessConflict(err)
		}
	}
	keys = padded(keys)
	for _, statement := range remove {
		res, err := tx.ExecContext(ctx, statement.text, append(slices.Clone(keys), statement.clocks(ahead)...)...)
		if err != nil {
			return seen, 0, s.unlessConflict(err)
		}
		n, err := res.RowsAffected()
		if err != nil {
			return seen, 0, err
		}
		removed += int(n)
	}
	if err := tx.Commit(); err != nil {
		return seen, 0, s.unlessConflict(err)
	}
	return seen, removed, nil
}

// padded repeats a key, because the statements have a fixed number of parameters.
func padded(keys []any) []any {
	for len(keys) < expiryBatch {
		keys = append(keys, keys[0])
	}
	return keys
}

// dueKeys reads the keys of a batch and sorts them.
func dueKeys(rows *sql.Rows, err error) ([]any, error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var keys [][]byte
	for rows.Next() {
		var k []byte
		if err := rows.Scan(&k); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	slices.SortFunc(keys, bytes.Compare)
	list := make([]any, len(keys), expiryBatch)
	for i, k := range keys {
		list[i] = k
	}
	return list, rows.Err()
}

// unlessConflict returns nil for the error of a transaction that another one has ended.
func (s *Store) unlessConflict(err error) error {
	if s.dialect.Fault(err) == sqldialect.Conflict {
		return nil
	}
	return err
}

// expireStatements are those of Expire. A row may have changed after its key was read, so each
// statement looks again whether it is due. A completed record whose result alone is over stays
// without its response.
func (st *statements) expireStatements(n names) {
	// {clock} - ? is the time that both clocks agree on, see ahead.
	const due = "expires IS NOT NULL AND expires <= {clock} - ?"
	const onlyResult = "form <= 1 AND state = 3 AND key_expires > {clock} - ?"
	in := " IN (" + strings.TrimPrefix(strings.Repeat(", ?", expiryBatch), ", ") + ")"
	st.due = n.sql("SELECT k FROM {records} WHERE form <= 1 AND expires IS NOT NULL AND expires <= {indexed} - ? ORDER BY expires LIMIT ?")
	if n.dialect.SkipLocked != "" {
		st.lockDue = n.sql("SELECT k FROM {records} WHERE k" + in + " AND form <= 1 AND " + due + n.dialect.SkipLocked)
	}
	st.strip = removal{n.sql("UPDATE {records} SET rev = rev + 1, state = 6, response = NULL, expires = key_expires" +
		" WHERE k" + in + " AND " + due + " AND " + onlyResult), 2}
	const over = " AND form <= 1 AND " + due + " AND NOT (" + onlyResult + ")"
	st.remove = removal{n.sql("DELETE FROM {records} WHERE k" + in + over), 2}
	// A joined record is due later than its times, because its row was written when the handler began.
	const ended = "state = 3 AND result_expires <= {clock} - ? AND key_expires <= {clock} - ?"
	st.forget = removal{n.sql("DELETE FROM {records} WHERE k = ? AND form <= 1 AND (" + due + " AND NOT (" + onlyResult + ") OR " + ended + ")"), 4}
	st.dueBindings = n.sql("SELECT k FROM {bindings} WHERE form <= 1 AND expires <= {indexed} - ? ORDER BY expires LIMIT ?")
	st.removeBindings = removal{n.sql("DELETE FROM {bindings} WHERE k" + in + " AND form <= 1 AND expires <= {clock} - ?"), 1}
}

// removal is a statement about rows that are due. It compares so many times with the clock.
type removal struct {
	text  string
	times int
}

// clocks are the last parameters of a removal.
func (r removal) clocks(ahead int64) []any {
	args := make([]any, r.times)
	for i := range args {
		args[i] = ahead
	}
	return args
}

// expireInBackground removes what is over until stop ends. It starts at a random moment, so
// that instances do not all begin at once.
func (s *Store) expireInBackground(stop context.Context) {
	timer := time.NewTimer(rand.N(s.config.expireEvery)) //nolint:gosec // it spreads load
	defer timer.Stop()
	for {
		select {
		case <-stop.Done():
			return
		case <-timer.C:
		}
		for stop.Err() == nil {
			ctx, cancel := context.WithTimeout(stop, expiryTimeout)
			n, err := s.Expire(ctx, expiryBatch)
			cancel()
			if err != nil && stop.Err() == nil {
				s.log.WarnContext(stop, "tokenstore/sql: cannot remove expired records", "err", err)
			}
			if n < expiryBatch || err != nil {
				break
			}
		}
		timer.Reset(s.config.expireEvery)
	}
}
