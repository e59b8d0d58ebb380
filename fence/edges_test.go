package fence

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// What a refused holder reads names the operation and both fences.
func TestStaleErrorNamesBothFences(t *testing.T) {
	t.Parallel()
	err := &StaleError{OperationID: "op_1", Fence: driver.Fence{Domain: "d", Token: 7}, Latest: driver.Fence{Domain: "d", Token: 9}}
	for _, want := range []string{"op_1", "7", "9", "stale"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("Error() = %q, want %q in it", err, want)
		}
	}
}
