package sqlstore

import (
	"context"
	"time"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// InnoDB shows a commit to other connections before its log is on the disk. A crash of the server
// in between loses the commit. So a completed record that was just read may be lost a moment
// later. Its answer must not be replayed before, because the next request would run again.
// PostgreSQL and SQLite show a commit after it is on the disk.
//
// A binary log that is synced at each commit prevents that. The store does not rely on it, because
// an operator may change sync_binlog at any time, and because binlog_do_db, binlog_ignore_db and
// sql_log_bin leave transactions out of that log.

// flushTime is longer than a commit can take to reach the disk. InnoDB ends its server if a thread
// has waited for more than 10 minutes (innodb_fatal_semaphore_wait_threshold).
const flushTime = 15 * time.Minute

// mayBeLost reports whether a crash of the server could lose a completed record that was found.
func (s *Store) mayBeLost(f *found) bool {
	return s.dialect.ShowsBeforeDisk && !s.config.readOnly && f.Form == recordForm && f.State == int64(driver.StateCompleted) && f.now-f.Settled < flushTime.Microseconds()
}

// durable waits until the commit of the record that was found is on the disk. It changes the rev
// of the record for this. The log is written in the order of the commits, so when the change is
// acknowledged, everything that it has seen is on the disk. durable returns false if the record
// has changed or gone meanwhile.
func (s *Store) durable(ctx context.Context, method string, id driver.KeyID, f *found) (bool, error) {
	if !s.mayBeLost(f) {
		return true, nil
	}
	n, err := changed(s.db.ExecContext(ctx, s.statements.touch, newRev(), id[:], f.Settlement))
	return n == 1, s.failed(method, err)
}
