// Package idem makes transaction endpoints safe to retry.
//
// A request carries a key. The engine takes a lock on the key, checks it
// against a token store, runs the handler, stores its outcome and gives the
// lock back. Every repeat of the request gets the first outcome.
//
// # Guarantee
//
// At most one automatic execution per key while its record survives, given a
// resource that checks the fencing token or a handler that cannot be paused
// past its session; a completed outcome is replayed; an outcome that cannot be
// known is surfaced as unknown, never silently run again.
//
// What this does not say: that an operation takes effect at all, or that a
// resource which ignores the fencing token is safe from a holder that was
// paused past its session and goes on afterwards. [CheckOwner] right before
// the irreversible step makes that window small; only the resource, which
// compares [Execution].Fence with the highest it has seen, closes it.
//
// # States of a key
//
//	          issue               begin               complete
//	(none) ──────────▶ issued ─────────────▶ pending ──────────▶ completed ──ttl──▶ expired
//	   └─────────── begin, client key ─────────▲ │ │             (replayed)     (key remembered,
//	                       next attempt ───────┘ │ └─ no effect ─▶ released        result gone)
//	                                             └─── in doubt ──▶ unknown ── resolve ─▶ completed | released
//
// A client key is made up by the client and its first use creates the record.
// An issued token is accepted only where the server issued it to that scope;
// its first use consumes it.
//
// # Parts
//
// [Engine] is the protocol. [Locker] and [Store] are what it stands on; package
// idemtest has the suites that every implementation has to pass. [Policy] is
// how a route treats keys. Adapters for transports read requests, write
// answers, and decide nothing; [Engine.Do] serves queue consumers and jobs
// directly: they need [Operation], [FingerprintOf] and [Response].
//
// Only adapters need [Transport], [ParseKey], [RequestFingerprint], [NewRefusal],
// [Engine.ReportRefused], [Policy.WithDefaults] and [Policy.ScopeOf].
//
// This package imports the standard library only.
package idem
