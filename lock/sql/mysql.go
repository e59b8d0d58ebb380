package sqllock

import (
	"bytes"
	"context"
	"database/sql"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/internal/leasing"
)

// extendMySQL chooses the rows that nobody has locked, and then renews those. Each statement commits by itself, because a process
// that is paused in a transaction would keep the rows locked. They name the index, because on a small table the server would
// read, and lock, all of it.
func extendMySQL(ctx context.Context, conn *sql.Conn, n names, locks []leasing.Lock, ttl int64) ([]error, error) {
	keys, owners := parameters(locks)
	chosen, err := keysOf(conn.QueryContext(ctx, n.sql("SELECT k FROM {locks} FORCE INDEX (PRIMARY) WHERE k IN ("+marks(len(locks))+
		") AND owner IN ("+marks(len(locks))+"){alone}"+n.kind.SkipLocked), slices.Concat(keys, owners)...))
	if err != nil {
		return nil, err
	}
	renewed := map[string]bool{}
	if len(chosen) > 0 {
		res, err := conn.ExecContext(ctx, n.sql("UPDATE {locks} FORCE INDEX (PRIMARY) SET expires = {latest} + ? WHERE k IN ("+marks(len(chosen))+
			") AND owner IN ("+marks(len(locks))+"){alone}"), slices.Concat([]any{ttl}, anys(chosen), owners)...)
		if err != nil {
			return nil, err
		}
		count, err := res.RowsAffected()
		if err != nil {
			return nil, err
		}
		if int(count) == len(chosen) { // otherwise it is not known which
			for _, k := range chosen {
				renewed[string(k)] = true
			}
		}
	}
	answers := make([]error, len(locks))
	if len(renewed) == len(locks) {
		return answers, nil
	}
	rows, err := conn.QueryContext(ctx, n.sql("SELECT k, owner FROM {locks} WHERE k IN ("+marks(len(locks))+")"), keys...)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	found := map[string][]byte{}
	for rows.Next() {
		var k, owner []byte
		if err := rows.Scan(&k, &owner); err != nil {
			return nil, err
		}
		found[string(k)] = owner
	}
	for i, l := range locks {
		switch {
		case renewed[string(l.ID[:])]:
		case bytes.Equal(found[string(l.ID[:])], l.Owner[:]):
			answers[i] = errSkipped
		default:
			answers[i] = leasing.ErrGone
		}
	}
	return answers, rows.Err()
}

// removeMySQL chooses rows as extendMySQL does. READ COMMITTED holds for the next statement alone, and keeps the DELETE from
// locking the gaps between keys.
func removeMySQL(ctx context.Context, conn *sql.Conn, n names, keys [][]byte, most int64) error {
	const due = "expires <= {earliest} - ? AND fence <= ?{alone}"
	args := []any{retention.Microseconds(), most}
	const readCommitted = "SET TRANSACTION ISOLATION LEVEL READ COMMITTED"
	if _, err := conn.ExecContext(ctx, readCommitted); err != nil {
		return err
	}
	chosen, err := keysOf(conn.QueryContext(ctx, n.sql("SELECT k FROM {locks} FORCE INDEX (PRIMARY) WHERE k IN ("+marks(len(keys))+") AND "+due+n.kind.SkipLocked),
		slices.Concat(anys(keys), args)...))
	if err != nil || len(chosen) == 0 {
		return err
	}
	if _, err := conn.ExecContext(ctx, readCommitted); err != nil {
		return err
	}
	_, err = conn.ExecContext(ctx, n.sql("DELETE FROM {locks} WHERE k IN ("+marks(len(chosen))+") AND "+due), slices.Concat(anys(chosen), args)...)
	return err
}

func parameters(locks []leasing.Lock) (keys, owners []any) {
	for i := range locks {
		keys, owners = append(keys, locks[i].ID[:]), append(owners, locks[i].Owner[:])
	}
	return keys, owners
}

func anys(keys [][]byte) (list []any) {
	for _, k := range keys {
		list = append(list, k)
	}
	return list
}

// marks are so many placeholders.
func marks(n int) string { return strings.TrimPrefix(strings.Repeat(", ?", n), ", ") }

// keysOf reads a column of keys.
func keysOf(rows *sql.Rows, err error) (keys [][]byte, _ error) {
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	for rows.Next() {
		var k []byte
		if err := rows.Scan(&k); err != nil {
			return nil, err
		}
		keys = append(keys, k)
	}
	return keys, rows.Err()
}
