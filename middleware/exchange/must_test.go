package exchange_test

import (
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
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

// Requests without a key are outside of the guarantee of their route, and it says so.
func TestGuaranteeOfAnOptionalKey(t *testing.T) {
	t.Parallel()
	for _, optional := range []bool{false, true} {
		engine := idem.MustNew(memorylock.New(), memorystore.New())
		exchange.MustNew(engine, idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, exchange.Config{OptionalKey: optional})
		if all := engine.Guarantees(); len(all) != 1 || strings.Contains(all[0].Line(), "if the request has a key") != optional {
			t.Errorf("optional %t: the route gets %v", optional, all)
		}
	}
}
