package pgxstore

import (
	"sync/atomic"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
)

// WatchStandby counts the commits of a pool that somebody has cancelled while they waited for a synchronous standby. The server
// calls them a success, with a warning. Call it before the pool is made of the configuration, and give the counter to
// sqllock.WithUnreplicated. It calls the OnNotice of the configuration as before.
func WatchStandby(cfg *pgx.ConnConfig) (unreplicated func() uint64) {
	var count atomic.Uint64
	before := cfg.OnNotice
	cfg.OnNotice = func(c *pgconn.PgConn, n *pgconn.Notice) {
		if n.Routine == "SyncRepWaitForLSN" { // the message is in the server's language
			count.Add(1)
		}
		if before != nil {
			before(c, n)
		}
	}
	return count.Load
}
