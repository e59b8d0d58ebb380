package wire

import (
	"testing"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(testserver.M{M: m}) }
