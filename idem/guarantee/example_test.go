package guarantee_test

import (
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/guarantee"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// A route that must survive a crash is refused in front of a store that ends with its process.
func Example() {
	engine := idem.MustNew(memorylock.New(), memorystore.New())
	_, err := engine.Fit(idem.Policy{Name: "POST /pay", AllowGlobalKeys: true, Require: guarantee.AtMostOnce, InDoubt: idem.LeaveUnknown()})
	fmt.Println(err)
	// Output:
	// idem: route "POST /pay" requires at most once anywhere else through repeats, an outage, a crash, and gets less from lock in this process, records in this process: not through a crash: the records end with the process: keep them in Redis or SQL (tokenstore/redis, tokenstore/sql)
}
