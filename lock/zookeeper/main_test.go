package zookeeper

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) {
	testserver.ParallelTests(4) // most of them wait for a server
	goleak.VerifyTestMain(testserver.M{M: m})
}
