// Package recipes has fair locks and other recipes of coordination on the session of a
// [zookeeper.Client].
//
//   - [Mutex] and [ReentrantMutex] are exclusive locks.
//   - [RWMutex] is a lock that readers share.
//   - [Semaphore] is a lock for a number of permits.
//   - [Election] chooses one leader at a time and tells observers of it.
//   - [Register] is a small value with a version.
//
// All but the Register are lines of places. A caller takes a place, an ephemeral sequential
// znode below the path, and waits until the rule of the recipe grants its turn. So callers of all
// processes are served in the order in which they asked. A [Lease] tells when the lock is lost.
//
// Callers of one client who ask at the same moment take their places in one transaction. Those
// places have one czxid, and each has a number of its own. A fencing token is the czxid times 128
// plus the number. So tokens differ, and they grow along the line.
//
// The guarantees of package zookeeper for its leases hold here too. Two points are different.
//
//   - The holder notices at Check and at Release that an operator has deleted its znode. Leaders,
//     holders with a listener, and holders that have called [Lease.Revoked] notice it at once.
//   - Places that Apache Curator, kazoo or go-zookeeper made at the same path are ignored, and
//     they ignore the places of this package. If both are in use, for example in a rolling
//     migration, a lock has two holders. So stop every client of the other library first.
//
// # Reading order
//
// place.go is one znode in a line. turn.go waits for its turn. handover.go passes a mutex on to the
// next waiter inside one client. lineup.go puts them together, with events.go and revoke.go for the
// news of a lease. participants.go lists a line. mutex.go, rwmutex.go, semaphore.go and election.go
// are the recipes, and reentrant.go counts the holds on a mutex. register.go stands alone.
package recipes
