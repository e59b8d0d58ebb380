// Package memorystore keeps idempotency records in the process.
//
// It is for one instance on one machine, and for tests: nothing survives the
// process, so a restart forgets every key. Its reach is the process, which is
// what lets it be used with the in-process lock.
//
// Time is the process's monotonic clock. Expired records are removed by the
// calls that come after: each that writes, or finds what it looks for, removes those
// that are due in its shard, so there is no goroutine to stop and nothing to close.
package memorystore
