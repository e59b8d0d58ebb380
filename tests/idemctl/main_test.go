// Package idemctl runs idemctl as a shell does, on a live system: its locks, elections and queues, and decisions on
// records. Tests beside its code run the other commands, which end by themselves, in their own process.
package idemctl

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

func TestMain(m *testing.M) {
	if os.Getenv(tellsSignals) != "" {
		os.Exit(tellSignals())
	}
	os.Exit(kit.Main(m))
}
