// Package faults has one fault at one moment: a killed or paused instance, a server that is gone or has lost its data, and
// a lost reply. Each test pays before, during and after it.
package faults

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

func TestMain(m *testing.M) { os.Exit(kit.Main(m)) }
