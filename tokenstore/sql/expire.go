package sqlstore

import (
	"bytes"
	"context"
	"math/rand/v2"
	"slices"
	"strings"
	"time"
)

const (
	// expiryBatch is how many rows one transaction removes. It holds their locks for some
	// milliseconds.
	expiryBatch = 500
	// expiryTimeout bounds one call of the background.
	expiryTimeout = 30 * time.Second
)

// Expire removes up to most records, results and bindings whose time is over, and returns how
// many. They count as expired without it. It works in batches of 500, and several processes
// may call it at once. The error wraps idem.ErrUnavailable, or is [ErrReadOnly]. The batches
// before the error stay removed.
func (s *Store) Expire(ctx context.Context, most int) (removed int, err error) {
	if err := s.mayWrite("expire"); err != nil {
		return 0, err
	}
	st := &s.statements
	for _, of := range []struct {
		due    string
		remove []string
	}{
		{st.due, []string{st.strip, st.remove}},
		{st.dueBindings, []string{st.removeBindings}},
	} {
		for removed < most {
			size := min(expiryBatch, most-removed)
			seen, n, err := s.expireBatch(ctx, size, of.due, of.remove)
			removed += n
			if err != nil {
				return removed, s.failed("expire", err)
			}
			if seen < size || n == 0 { // n is 0 if another process removes the same rows
				break
			}
		}
	}
	return removed, nil
}

// expireBatch reads the keys that are due, then changes their rows by the primary key and in
// its order, if they are still due. So it locks no row that is not due, and two processes
// hardly ever wait for each other in a circle. If they do, one of them removes nothing.
func (s *Store) expireBatch(ctx context.Context, size int, due string, remove []string) (seen, removed int, err error) {
	keys, err := s.due(ctx, due, size)
	if err != nil || len(keys) == 0 {
		return 0, 0, err
	}
	seen = len(keys)
	for len(keys) < expiryBatch { // the statement has a fixed number of parameters
		keys = append(keys, keys[seen-1])
	}
	tx, err := s.begin(ctx)
	if err != nil {
		return seen, 0, err
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	for _, statement := range remove {
		res, err := tx.ExecContext(ctx, statement, keys...)
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

// due reads the keys of a batch and sorts them.
func (s *Store) due(ctx context.Context, statement string, size int) ([]any, error) {
	rows, err := s.read.QueryContext(ctx, statement, size)
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
	if s.dialect.fault(err) == faultConflict {
		return nil
	}
	return err
}

// expireStatements are those of Expire. A row may have changed after its key was read, so each
// statement looks again whether it is due. A completed record whose result alone is over stays
// without its response.
func (st *statements) expireStatements(n names) {
	const due = "expires IS NOT NULL AND expires <= {clock}"
	const onlyResult = "form <= 1 AND state = 3 AND key_expires > {clock}"
	in := " IN (" + strings.TrimPrefix(strings.Repeat(", ?", expiryBatch), ", ") + ")"
	st.due = n.sql("SELECT k FROM {records} WHERE form <= 1 AND " + due + " ORDER BY expires LIMIT ?")
	st.strip = n.sql("UPDATE {records} SET rev = rev + 1, state = 6, response = NULL, expires = key_expires" +
		" WHERE k" + in + " AND " + due + " AND " + onlyResult)
	const over = " AND form <= 1 AND " + due + " AND NOT (" + onlyResult + ")"
	st.remove = n.sql("DELETE FROM {records} WHERE k" + in + over)
	// A joined record is due later than its times, because its row was written when the handler began.
	const ended = "state = 3 AND result_expires <= {clock} AND key_expires <= {clock}"
	st.forget = n.sql("DELETE FROM {records} WHERE k = ? AND form <= 1 AND (" + due + " AND NOT (" + onlyResult + ") OR " + ended + ")")
	st.dueBindings = n.sql("SELECT k FROM {bindings} WHERE form <= 1 AND expires <= {clock} ORDER BY expires LIMIT ?")
	st.removeBindings = n.sql("DELETE FROM {bindings} WHERE k" + in + " AND form <= 1 AND expires <= {clock}")
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
