// Package wiring makes the mistakes that people make when they wire Idemkeeper up, on real servers. Each of them has to be told,
// as a refusal to start or in the log of the server, with the fault and the next step.
package wiring

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }
