// Package memorystore keeps idempotency records in the memory of one process.
//
// It is for a service that runs as one instance, and for tests. A restart forgets
// every key. [Store.Visibility] is [driver.VisibilityProcess], so an engine combines the store
// with the in-process lock and refuses a lock that spans processes.
//
// Time is the process's monotonic clock. The store has no goroutine and needs no
// closing. Each call removes some expired records of other keys. An expired record
// that has not been removed yet already counts as expired.
//
// # Reading order
//
// store.go has the records and their expiry. change.go has the methods that change a record.
// Package idem/driver/rules decides what they do.
package memorystore
