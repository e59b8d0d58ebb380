// Package idemtest has the conformance suites for backends of package idem, and the fault
// injectors for tests of the engine. Backends in other modules use it too.
//
// [RunStore] and [RunLocker] are the suites. Each takes a harness that makes the store or
// locker to test. The comments on [idem.Store] and [idem.Locker] are the contract.
// [BenchmarkStore] measures every store in the same way:
//
//	func TestStore(t *testing.T) {
//		idemtest.RunStore(t, idemtest.StoreHarness{
//			New: func(tb testing.TB) idem.Store { return mystore.New() },
//		})
//	}
//
// [FaultyStore] and [FaultyLocker] wrap a working backend. A test picks calls to fail before
// they take effect or after it, to take effect late, or to be lost.
package idemtest
