package sqlstore

import (
	"testing"
	"time"

	"go.uber.org/goleak"
)

// The tests here need no database. Those that do are in tests/sqlstore, because a driver that a test imports would
// be in the graph of every service that uses the store.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for. Reaching it is a failure.
const patience = 30 * time.Second

// must ends a test whose preparation has failed.
func must(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}
