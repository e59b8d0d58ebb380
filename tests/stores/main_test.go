// Package stores compares what the engine does on one store and lock with what it does on the others, and has the
// conflicts and failures of joined transactions.
package stores

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(6) // they mostly wait for the servers
	os.Exit(testserver.Main(m))
}
