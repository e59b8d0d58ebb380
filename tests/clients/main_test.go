// Package clients is about what clients send and what they are told: refusals, replays, duplicates, tokens, hostile input,
// secrets, and the example clients in other languages.
package clients

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
)

func TestMain(m *testing.M) { os.Exit(kit.Main(m)) }
