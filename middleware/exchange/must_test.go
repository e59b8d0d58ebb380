package exchange_test

import (
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

func TestMustNewPanicsWithWrongWiring(t *testing.T) {
	t.Parallel()
	defer func() {
		if recover() == nil {
			t.Error("MustNew() without an engine did not panic")
		}
	}()
	exchange.MustNew(nil, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
}
