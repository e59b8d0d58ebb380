// Package recipes has fair locks and other recipes of coordination on the session of a
// [zookeeper.Client]:
//
//   - [Mutex] and [ReentrantMutex]: exclusive locks.
//   - [RWMutex]: a lock that readers share.
//   - [Semaphore]: a lock for a number of permits.
//   - [Election]: one leader at a time, and who it is.
//   - [Register]: a small value with a version.
//
// All but the Register are lines of places. A caller takes a place, an ephemeral
// sequential znode below the path, and waits until the rule of the recipe says that its turn
// has come (lineup.go, place.go, turn.go). So callers are served in the order in which they
// asked, over all processes. A [Lease] tells when the lock is lost, and its fencing token
// grows along the line.
//
// What package zookeeper guarantees for its leases holds for these as well. Besides:
//
//   - A znode deleted by hand is noticed at Check and at Release. Before that only leaders,
//     holders with a listener, and holders that have called [Lease.Revoked] notice it.
//   - Places that Apache Curator, kazoo or go-zookeeper made at the same path are ignored,
//     and they ignore the places of this package. While both are in use, for example in a
//     rolling migration, a lock has two holders. So stop every client of the other library
//     first.
package recipes
