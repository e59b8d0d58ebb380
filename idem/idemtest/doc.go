// Package idemtest has the conformance suites for backends of package idem, and the fault
// injectors for tests of the engine. Backends in other modules use it too.
//
// [RunStore] and [RunLocker] are the suites. Each takes a harness that makes the store or
// locker to test. The comments on [driver.Store] and [driver.Locker] are the contract.
// [BenchmarkStore] measures every store in the same way:
//
//	func TestStore(t *testing.T) {
//		idemtest.RunStore(t, idemtest.StoreHarness{
//			New: func(tb testing.TB) driver.Store { return mystore.New() },
//		})
//	}
//
// [FaultyStore] and [FaultyLocker] wrap a working backend. A test picks calls to fail before
// they take effect or after it, to take effect late, or to be lost.
//
// # Writing a store
//
//  1. Read the comments on [driver.Store]. Package idem/driver/rules has the same rules in
//     Go, and memorystore and sqlstore use it. Package redisstore shows them on a server, as
//     one script for each method that changes a record.
//  2. Decide how a method becomes one step of the service: a script, a transaction, or a read
//     and a conditional write in a loop. The step has to compare the whole attempt, because
//     the service may get every request twice.
//  3. Store more than the [driver.Record]. Abort needs the state before a pending attempt. A
//     repeated Settle is recognised by the ID of the settlement, and gets the same answer as
//     the first.
//  4. Give each record a version of its form. An [driver.Response] has a binary form with a
//     checksum, see its AppendBinary. If the service cannot hold a long response, Settle
//     returns [driver.ErrResponseInvalid]. The engine then settles with the status alone.
//  5. Keep the list of open records in the same step as the records, and read both from the
//     primary. An index with a delay breaks ListOpen.
//  6. Take the time from the service, in the step itself. An expired record counts as
//     expired before the service has removed it. A service without a clock in its writes,
//     such as DynamoDB, cannot keep this rule. A store on it has to use the clocks of its
//     callers and has to say so. It then forgets a key too early by as much as a clock is
//     ahead.
//  7. Run [RunStore], with Advance if the clock can be moved, and with Damage.
//
// # Writing a locker
//
// The comments on [driver.Locker], [driver.Lease] and [driver.Fence] are the contract. Package
// memorylock is the smallest model. Run [RunLocker].
package idemtest
