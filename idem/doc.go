// Package idem makes transaction endpoints safe to retry.
//
// A request carries a key. The [Engine] takes a lock on the key, checks the key in a token
// store, runs the handler, stores the outcome and releases the lock. Every repeat of the
// request gets the first outcome.
//
// # Guarantee
//
// At most one automatic execution per key while its record survives, given a
// resource that checks the fencing token or a handler that cannot be paused
// past its session; a completed outcome is replayed; an outcome that cannot be
// known is surfaced as unknown, never silently run again.
//
// # What is not guaranteed
//
// An operation may fail to take effect at all. A resource that ignores the fencing token is
// not safe from a holder that was paused past its session and goes on afterwards.
// [CheckOwner] right before the irreversible step makes that window small. Only the
// resource closes it, by comparing [Execution].Fence with the highest fence it has seen.
//
// # States of a key
//
//	          issue               begin               complete
//	(none) ──────────▶ issued ─────────────▶ pending ──────────▶ completed ──ttl──▶ expired
//	   └─────────── begin, client key ─────────▲ │ │             (replayed)     (key remembered,
//	                       next attempt ───────┘ │ └─ no effect ─▶ released        result gone)
//	                                             └─── in doubt ──▶ unknown ── resolve ─▶ completed | released
//
// The client makes up a client key, and its first use creates the record. The server issues
// a token to a scope. Its first use consumes it, and every other value is refused.
//
// # Joined mode
//
// An engine from [NewJoined] keeps its records in the database of the application. The record
// commits in one transaction with what the handler writes there, so that happens exactly once,
// and a crash leaves no outcome in doubt. What the handler does outside of the transaction, such
// as a call to a bank, may happen more than once. [Policy].CallsOtherSystems and [DownstreamKey]
// are for such calls. [KeepWrites] and [ReportFailure] are for handlers in this mode only.
//
// # Reading order
//
// Start with [Policy], which says how a route treats keys, and [Engine.Do], which queue
// consumers and jobs call directly with an [Operation] and a [FingerprintOf] it. The
// adapters for HTTP and gRPC only translate. [CheckOwner], [DownstreamKey] and [NoEffect]
// are for handlers. [AskResolver] settles what was interrupted.
//
// Package driver has the interfaces below the engine, [driver.Locker] and [driver.Store], for
// authors of lock services and token stores. Package telemetry has the events and steps that
// [WithObserver] and [WithTelemetry] report.
//
// Inside the package, engine.go has the order of all steps, and the interface that a mode
// implements. A mode takes the key, runs the handler and stores the outcome. lockmode.go is that of
// [New] and joined.go that of [NewJoined], each from step 4 to step 8. They share core.go, first.go
// (waiting for a request in this process), execution.go (the handler) and outcome.go (what its answer
// means). resolve.go and decide.go handle outcomes in doubt. The other files are about what is rare:
// abort.go and late.go about calls without an answer, mark.go about durable markers, history.go about a
// lock service that lost data, withoutkey.go about clients that send no keys yet.
//
// Only adapters need [Transport], [ParseKey], [RequestFingerprint], [NewRefusal],
// [Engine.DoWithoutKey], [Engine.ReportRefused], [Engine.ReportMisused], [Engine.Nested], [NotAdmitted], [JoinedTxOf],
// [Policy.WithDefaults] and [Policy.ScopeOf].
//
// This package and those below it import the standard library only.
package idem
