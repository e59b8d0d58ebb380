// Package around tests the examples of docs/around.md: proxies that send requests again or give up, and
// requests that are compressed.
package around

import (
	"os"
	"testing"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }
