package sqlstore

import (
	"cmp"
	"context"
	"database/sql"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

const (
	// expiryBatch is how many rows one transaction removes. Its locks are held for some
	// milliseconds.
	expiryBatch = 500
	// expiryTimeout bounds one batch of the background.
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
	for _, batch := range []func(context.Context, int) (seen, removed int, err error){s.expireRecords, s.expireBindings} {
		for removed < most {
			size := min(expiryBatch, most-removed)
			seen, n, err := batch(ctx, size)
			removed += n
			if err != nil {
				return removed, err
			}
			if seen < size || n == 0 { // n is 0 if another process removes the same ones
				break
			}
		}
	}
	return removed, nil
}

// dueRow is a row whose time is over.
type dueRow struct {
	k     []byte
	rev   int64
	strip bool // only the result is over
}

// expireRecords is one batch of records. It reads their keys first, then changes them by the
// primary key, in order. So it locks no row that is not due, and two processes never wait for
// each other in a circle.
func (s *Store) expireRecords(ctx context.Context, size int) (seen, removed int, err error) {
	list, err := s.due(ctx, s.statements.due, size)
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	err = s.inBatch(ctx, func(tx *sql.Tx) error {
		removed = 0
		for _, d := range list {
			statement, args := s.statements.remove, []any{d.k, d.rev}
			if d.strip {
				statement, args = s.statements.strip, []any{newRev(), int64(idem.StateExpired), d.k, d.rev}
			}
			n, err := affected(tx.ExecContext(ctx, statement, args...))
			if err != nil {
				return err
			}
			removed += n
		}
		return nil
	})
	return len(list), removed, err
}

// expireBindings is one batch of bindings.
func (s *Store) expireBindings(ctx context.Context, size int) (seen, removed int, err error) {
	list, err := s.due(ctx, s.statements.dueBindings, size)
	if err != nil || len(list) == 0 {
		return 0, 0, err
	}
	err = s.inBatch(ctx, func(tx *sql.Tx) error {
		removed = 0
		for _, d := range list {
			n, err := affected(tx.ExecContext(ctx, s.statements.removeBinding, d.k))
			if err != nil {
				return err
			}
			removed += n
		}
		return nil
	})
	return len(list), removed, err
}

// due reads the keys of a batch.
func (s *Store) due(ctx context.Context, statement string, size int) (list []dueRow, err error) {
	rows, err := s.read.QueryContext(ctx, statement, size)
	if err != nil {
		return nil, s.failed("expire", err)
	}
	defer rows.Close() //nolint:errcheck // Err has the error
	for rows.Next() {
		var d dueRow
		var form, state, keyExpires, now int64
		if err := rows.Scan(&d.k, &d.rev, &form, &state, &keyExpires, &now); err != nil {
			return nil, s.failed("expire", err)
		}
		if form > recordForm {
			continue
		}
		d.strip = state == int64(idem.StateCompleted) && keyExpires > now
		list = append(list, d)
	}
	slices.SortFunc(list, func(a, b dueRow) int { return cmp.Compare(string(a.k), string(b.k)) })
	return list, s.failed("expire", rows.Err())
}

// inBatch runs f in a transaction. After a conflict nothing was removed, and the next batch
// begins with the same rows.
func (s *Store) inBatch(ctx context.Context, f func(tx *sql.Tx) error) error {
	tx, err := s.db.BeginTx(ctx, &sql.TxOptions{Isolation: s.dialect.isolation})
	if err != nil {
		return s.failed("expire", err)
	}
	defer tx.Rollback() //nolint:errcheck // does nothing after Commit
	if err := f(tx); err != nil {
		return s.failed("expire", err)
	}
	return s.failed("expire", tx.Commit())
}

func affected(res sql.Result, err error) (int, error) {
	if err != nil {
		return 0, err
	}
	n, err := res.RowsAffected()
	return int(n), err
}

// jitter is a random part of d.
func jitter(d time.Duration) time.Duration { return rand.N(d) }

// expireInBackground removes what is over until stop ends. It starts at a random moment, so
// that instances do not all begin at once.
func (s *Store) expireInBackground(stop context.Context) {
	for pause := jitter(s.config.expireEvery); ; pause = s.config.expireEvery {
		select {
		case <-stop.Done():
			return
		case <-time.After(pause):
		}
		for {
			ctx, cancel := context.WithTimeout(stop, expiryTimeout)
			n, err := s.Expire(ctx, expiryBatch)
			cancel()
			if err != nil && !errors.Is(stop.Err(), context.Canceled) {
				s.log.WarnContext(stop, "tokenstore/sql: cannot remove expired records", "err", fmt.Sprint(err))
			}
			if n < expiryBatch || err != nil {
				break
			}
		}
	}
}
