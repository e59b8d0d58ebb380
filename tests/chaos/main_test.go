// Package chaos breaks real servers and processes of the sample at random while clients pay, and then compares
// what the clients were told with the ledger.
package chaos

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

func TestMain(m *testing.M) { os.Exit(kit.Main(m)) }
