package sqlstore_test

import (
	"strings"
	"time"
)

// What the store keeps to itself, as its documentation has it.
const (
	expiryBatch = 500  // records are removed at once
	keysRead    = 5000 // keys are read at once
	fewestRead  = 64   // rows are read at once, at least, for a list
	maxText     = 255
	maxReason   = 1024
	flushTime   = 15 * time.Minute       // after which a commit is on the disk
	idleMargin  = 10 * time.Second       // beyond the time of a handler
	lateBy      = 100 * time.Millisecond // that an estimate of the server's time may be behind
)

// columns of the table of records, without the key and the revision.
var columns = strings.Fields(`form state kind route fingerprint attempt domain fence nonce settlement repaired
	created started settled result_expires key_expires token_expires decided_by decided_reason
	result_ttl key_ttl response previous open_since expires`)

// What the errors say for which the store has no name.
const (
	errSetting             = "the connection is not fit to keep records"
	errReadOnlyDatabase    = "the database accepts no writes"
	errLeftOpen            = "others have left a session of the pool with autocommit off or a transaction open"
	errConnectionLost      = "the connection was lost before COMMIT: "
	errConnectionLostAtEnd = "the connection was lost before COMMIT or in it: "
)

func says(err error, what string) bool { return err != nil && strings.Contains(err.Error(), what) }

// isMariaDB tells MariaDB from MySQL.
func (s *service) isMariaDB() bool {
	return strings.Contains(get[string](s, s.pools.read, "SELECT version()"), "MariaDB")
}
