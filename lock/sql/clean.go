package sqllock

import (
	"context"
	"database/sql"
	"math/rand/v2"
	"time"
)

const (
	// retention is how long the row of a free lock stays, by the server's clock. Its fence has to be known to every request
	// that began before it was free.
	retention = time.Minute
	// cleanBatch is how many rows one statement removes.
	cleanBatch = 500
	// cleanTimeout bounds one batch.
	cleanTimeout = 30 * time.Second
	// keepAlive is how often the connection of heartbeats is used at least, so that it is not found broken when it is needed.
	keepAlive = 10 * time.Second
)

// cleaner removes the rows of locks that have been free for long. A new row gets a fence above that of the
// domain's row, so the cleaner first raises that one, and removes the rows in its next pass. Then no request
// is left that has read the domain's row before, because maxAcquire is shorter than a pass.
type cleaner struct {
	*keeper
	raised int64 // the fence of the domain's row since the last pass or earlier
}

// pass cleans once.
func (c *cleaner) pass(ctx context.Context) error {
	conn, err := c.db.Conn(ctx)
	if err != nil {
		return err
	}
	defer conn.Close() //nolint:errcheck // it goes back to the pool, or is closed already
	for known := c.raised; ; {
		n, err := c.batch(ctx, conn, known)
		if n < cleanBatch || err != nil {
			return c.unlessConflict(err)
		}
	}
}

// batch removes some rows whose fence is known to every request, and raises the domain's fence for the next pass. It
// returns the number of rows that it has removed or left to others.
func (c *cleaner) batch(ctx context.Context, conn *sql.Conn, known int64) (n int, err error) {
	ctx, cancel := context.WithTimeout(ctx, cleanTimeout)
	defer cancel()
	rows, err := conn.QueryContext(ctx, c.text.due, retention.Microseconds(), cleanBatch)
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var keys [][]byte
	top := c.raised
	for rows.Next() {
		var k []byte
		var fence int64
		if err := rows.Scan(&k, &fence); err != nil {
			return 0, err
		}
		if top = max(top, fence); fence <= known {
			keys = append(keys, k)
		}
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	if len(keys) > 0 {
		if err := c.names.kind.remove(ctx, conn, c.names, keys, known); err != nil {
			return 0, err
		}
	}
	if top > c.raised {
		if _, err := conn.ExecContext(ctx, c.text.raise, top, top); err != nil {
			return 0, err
		}
		c.raised = top
	}
	return len(keys), nil
}

// tend cleans, and keeps the connection of heartbeats alive, until the locker ends. It begins to clean at a random
// moment, so that instances do not all do it at once.
func (l *Locker) tend(ctx context.Context) {
	c := cleaner{keeper: l.keeper}
	clean := time.NewTimer(rand.N(l.cleanEvery)) //nolint:gosec // it spreads load
	defer clean.Stop()
	alive := time.NewTicker(keepAlive)
	defer alive.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-alive.C:
			l.keeper.heart.extend(ctx, nil)
		case <-clean.C:
			if err := c.pass(ctx); err != nil && ctx.Err() == nil {
				l.log.WarnContext(ctx, "lock/sql: cannot remove the rows of free locks", "err", l.keeper.explained(err))
			}
			clean.Reset(l.cleanEvery)
		}
	}
}
