package zookeeper

import (
	"os"
	"testing"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/internal/testserver"
)

// processes are what the test binary is instead where the variable is set: what
// some tests run, and kill, in processes of their own.
var processes = map[string]func(setting string){
	adderVariable:    addToSet,
	consumerVariable: consumeQueue,
}

func TestMain(m *testing.M) {
	for variable, run := range processes {
		if setting := os.Getenv(variable); setting != "" {
			run(setting)
			return
		}
	}
	goleak.VerifyTestMain(testserver.M{M: m})
}
