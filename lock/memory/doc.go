// Package memorylock is the lock of a service that runs as one process. It is an
// [driver.Locker] in the memory of that process and needs no server.
//
// # Guarantees
//
// A [Locker] gives out at most one lease per key ID at a time. A lease ends by its
// release or by [Locker.Revoke], and in no other way. It has no time-out. Its Done
// channel closes in the same step in which the lock becomes free.
//
// # Limits
//
// Other processes do not see these locks, and neither do other Lockers of the same
// process. [Locker.Visibility] is [driver.VisibilityProcess], so an engine refuses to combine the
// locker with a token store that other processes can use. All locks end with the
// process.
//
// # Fences
//
// Fencing tokens start from the wall clock in nanoseconds when the process starts.
// They rise by one with each lease, across all Lockers of the process. A restarted
// process is ahead of its predecessor unless the clock was set back by more than the
// predecessor's run. Each Locker has a lock domain of its own with a random name, so
// a fence is never compared with a fence of an earlier process. [WithDomain] gives
// that up. A service of one process needs it if its records outlive it, as in a file of SQLite without
// joined mode. Otherwise an operator retires the domain of each process that crashed.
package memorylock
