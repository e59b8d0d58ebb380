package recipes

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The test binary is a process that some tests run, and kill, if this variable is set.
func TestMain(m *testing.M) {
	if setting := os.Getenv(adderVariable); setting != "" {
		addToSet(setting)
		return
	}
	goleak.VerifyTestMain(testserver.M{M: m})
}
