// Package driver has the interfaces that a lock service and a token store implement, and the values
// that go through them. A service configures package idem, which is built on this package, and
// names types of this one rarely.
//
// # What to implement
//
// A lock service is a [Locker]. It may also be a [LockInspector], which tells operators about its
// locks, and a [HistoryLocker], if its service can come back with older data. Its leases may be
// [MarkingLease] values, if the service can keep a [Marker] of an attempt in place of a lock.
//
// A token store is a [Store], which keeps one [Record] per key. It may also be a [StoreInspector].
// A database that keeps the records next to the data of the application is a [JoinedStore].
//
// Package idemtest has the suites that every implementation passes. Package rules decides what a
// store does with a record, as functions without effects, for stores that do not decide in a
// language of their own.
//
// # Guarantee
//
// The engine relies on the comments of these interfaces and on nothing else. [Fence] tells a
// resource which of two holders is the later one, and [Nonce] tells a repeated call from a new one.
// So every call may arrive twice, late, and out of order.
//
// This package imports the standard library only, besides a hash of this module.
package driver
