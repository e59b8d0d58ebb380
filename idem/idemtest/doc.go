// Package idemtest holds what every backend of package idem has to pass, and
// what tests of the engine break it with. It is for backends of other modules
// too.
//
// [RunStore] and [RunLocker] are the conformance suites. Each takes a harness
// that says how to make the thing to test; the contract that a subtest holds it
// to is the comment on [idem.Store] or [idem.Locker]. [BenchmarkStore] measures
// a store the same way for all:
//
//	func TestStore(t *testing.T) {
//		idemtest.RunStore(t, idemtest.StoreHarness{
//			New: func(tb testing.TB) idem.Store { return mystore.New() },
//		})
//	}
//
// [FaultyStore] and [FaultyLocker] wrap a working backend and fail calls that
// the test picks: before they take effect, after it, late, or never.
package idemtest
