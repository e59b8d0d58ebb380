package idemtest_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// The tests of a store run the suite. A store with a server starts it in New, and the backends of
// this module show the rest of the harness.
func ExampleRunStore() {
	testStore := func(t *testing.T) { // TestStore
		idemtest.RunStore(t, idemtest.StoreHarness{
			New: func(testing.TB) driver.Store { return memorystore.New() },
		})
	}
	_ = testStore // go test runs it
	// Output:
}

func ExampleBenchmarkStore() {
	benchmarkStore := func(b *testing.B) { // BenchmarkStore
		idemtest.BenchmarkStore(b, idemtest.StoreHarness{
			New: func(testing.TB) driver.Store { return memorystore.New() },
		})
	}
	_ = benchmarkStore // go test -bench runs it
	// Output:
}

func ExampleRunLocker() {
	testLocker := func(t *testing.T) { // TestLocker
		idemtest.RunLocker(t, idemtest.LockerHarness{
			New: func(*testing.T) driver.Locker { return memorylock.New() },
		})
	}
	_ = testLocker // go test runs it
	// Output:
}

// The answer of the first Settle is lost. The store has applied it, so the client gets its answer
// and a repeat is replayed.
func ExampleNewFaultyStore() {
	store := idemtest.NewFaultyStore(memorystore.New())
	engine, err := idem.New(memorylock.New(), store)
	if err != nil {
		panic(err)
	}
	store.LoseReply("Settle", 1, errors.New("the connection broke"))
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for range 2 {
		res, err := engine.Do(context.Background(), idem.Operation{
			Scope: "merchant_1", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "12.50"),
		}, func(context.Context) (idem.Response, error) { return idem.Response{Body: []byte("pay_1")}, nil })
		fmt.Printf("%s, replayed %v, %v\n", res.Response.Body, res.Replayed, err)
	}
	// Output:
	// pay_1, replayed false, <nil>
	// pay_1, replayed true, <nil>
}
