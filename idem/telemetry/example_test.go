package telemetry_test

import (
	"context"
	"fmt"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// An observer counts the events by their type and the name of the policy.
func ExampleObserver() {
	counts := map[string]int{}
	engine, err := idem.New(memorylock.New(), memorystore.New(), idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
		counts[ev.Route+" "+ev.Type.String()]++
	}))
	if err != nil {
		fmt.Println(err)
		return
	}
	pay := idem.Operation{Scope: "m1", Key: "k1", Policy: &idem.Policy{Name: "pay", AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, Fingerprint: idem.FingerprintOf("pay", "100")}
	for range 3 {
		if _, err := engine.Do(context.Background(), pay, func(context.Context) (idem.Response, error) { return idem.Response{}, nil }); err != nil {
			fmt.Println(err)
		}
	}
	_ = engine.Close(context.Background())
	fmt.Println(counts)
	// Output: map[pay begun:1 pay completed:1 pay replayed:2]
}
