package sqllock

import (
	"context"
	"database/sql"

	"github.com/idemkeeper/idemkeeper/internal/leasing"
)

// extendPostgres is one statement. The list of locks is one parameter, 48 bytes for each.
func extendPostgres(ctx context.Context, conn *sql.Conn, n names, locks []leasing.Lock, ttl int64) ([]error, error) {
	text := n.sql("WITH given AS (SELECT CAST(? AS bytea) AS list, CAST(? AS int) AS n)," +
		" asked AS MATERIALIZED (SELECT i, substring(g.list FROM i * 48 + 1 FOR 32) AS k, substring(g.list FROM i * 48 + 33 FOR 16) AS owner" +
		" FROM given AS g, generate_series(0, g.n - 1) AS i)," +
		" chosen AS (SELECT l.k FROM {locks} AS l WHERE l.k = ANY (ARRAY(SELECT a.k FROM asked AS a))" +
		" AND l.owner = ANY (ARRAY(SELECT a.owner FROM asked AS a)) FOR UPDATE OF l SKIP LOCKED)," +
		" renewed AS (UPDATE {locks} AS l SET expires = {latest} + CAST(? AS bigint) FROM chosen AS c WHERE l.k = c.k" +
		" RETURNING l.k, " + n.kind.Durably("1") + " AS one)" +
		" SELECT a.i, r.one IS NOT NULL, l.owner IS NOT DISTINCT FROM a.owner FROM asked AS a LEFT JOIN renewed AS r ON r.k = a.k LEFT JOIN {locks} AS l ON l.k = a.k")
	list := make([]byte, 0, 48*len(locks))
	for _, l := range locks {
		list = append(append(list, l.ID[:]...), l.Owner[:]...)
	}
	rows, err := conn.QueryContext(ctx, text, list, len(locks), ttl)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	answers := all(len(locks), leasing.ErrGone)
	for rows.Next() {
		var i int
		var renewed, ours bool
		if err := rows.Scan(&i, &renewed, &ours); err != nil {
			return nil, err
		}
		switch {
		case renewed:
			answers[i] = nil
		case ours:
			answers[i] = errSkipped
		}
	}
	return answers, rows.Err()
}

// removePostgres is one statement.
func removePostgres(ctx context.Context, conn *sql.Conn, n names, keys [][]byte, most int64) error {
	var list []byte
	for _, k := range keys {
		list = append(list, k...)
	}
	_, err := conn.ExecContext(ctx, n.sql("WITH given AS (SELECT CAST(? AS bytea) AS list, CAST(? AS int) AS n)"+
		" DELETE FROM {locks} WHERE k = ANY (ARRAY(SELECT l.k FROM {locks} AS l WHERE l.k = ANY (ARRAY("+
		"SELECT substring(g.list FROM i * 32 + 1 FOR 32) FROM given AS g, generate_series(0, g.n - 1) AS i))"+
		" AND l.expires <= {earliest} - ? AND l.fence <= ? FOR UPDATE OF l SKIP LOCKED))"),
		list, len(keys), retention.Microseconds(), most)
	return err
}
