// Package memorylock is the lock of a service that runs as one process: an
// [idem.Locker] that lives in this process's memory and needs no server.
//
// # Guarantees
//
// At most one lease per key ID exists at a time in one [Locker]. A lease ends
// by its release or by [Locker.Revoke], and in no other way: it has no
// time-out, and no connection that could be lost. Its Done channel is closed
// in the same step in which the lock becomes free.
//
// # Limits
//
// Another process does not see these locks, nor does another Locker of this
// process: [Locker.Reach] is [idem.ReachProcess], and an engine refuses to
// combine that with a token store that others can use. When the process ends
// so do all its locks.
//
// # Fences
//
// Fencing tokens start from the wall clock, in nanoseconds, when the process
// starts and rise by one with each lease, across all Lockers of the process. A
// restarted process is therefore ahead of its predecessor as long as the clock
// was not set back by more than the predecessor ran. Each Locker is a lock
// domain of its own, with a random name, so that even then no fence is compared
// with one of an earlier life, unless [WithDomain] says otherwise.
package memorylock
