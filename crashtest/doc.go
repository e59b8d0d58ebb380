// Package crashtest kills a service at every step of a request, asks again, and looks into the ledger.
//
// A test names a service, a request and a ledger:
//
//	func TestPaymentSurvives(t *testing.T) {
//		crashtest.Run(t, crashtest.Subject{
//			Serve:   serve,   // starts the service, with drivers wrapped by the Env
//			Request: request, // makes the request, with the same key for every repeat
//			Effects: effects, // counts in the ledger what one operation has done
//		})
//	}
//
// [Run] starts the test binary again as the service. A first request shows which points it passes: statements, commits
// and calls of wrapped drivers, and those of [Point]. Then each [Fault] happens at each point, in a process of its own, and a
// client repeats the request until it has a final answer. A case passes if there is one effect at most, exactly one behind a
// success, none behind a refusal, and the same final answer for every repeat. "In doubt, and told so" passes with one effect
// at most.
//
// The code of the test before Run also runs in the processes of the service. So what all of them share belongs into [Subject.Setup].
//
// The service need not use Idemkeeper, and the package needs the standard library alone. Its folders have wrappers for
// other clients. docs/crashtest.md leads from a service to its table of faults.
//
// A clean table is evidence and no proof: the kit breaks one thing at a time, at points that it can see.
package crashtest
