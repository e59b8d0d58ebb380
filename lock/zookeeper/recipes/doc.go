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
// lineup.go is a line. place.go is one znode in it. turn.go waits for its turn. handover.go passes a
// mutex on to the next waiter inside one client. events.go and revoke.go have the news of a lease.
// participants.go lists a line. mutex.go, rwmutex.go, semaphore.go and election.go are the recipes,
// and reentrant.go counts the holds on a mutex. register.go stands alone.
//
// # Adding a recipe
//
// A new recipe is a file of its own, with a type around a lineup. mutex.go is the shortest
// model, and semaphore.go has everything that a recipe may need.
//
//   - If a caller waits only for callers before it, the recipe is a role and a rule (turn.go),
//     and its Acquire calls lineup.acquire. A rule may see a line with places that have gone
//     since. So it looks only at its own place and at those before it, and a turn that it
//     grants stays granted when any place before it goes.
//   - If the turn depends on places behind too, as in a barrier, a rule is not enough. Such a
//     recipe calls lineup.try with a wait of its own. The wait reads the line with lookAtLine,
//     a deciding read. It waits with awaitChange, so that the loss of the place ends it. It
//     calls begin before it returns nil, because begin refuses a place that cannot be trusted
//     any more.
//   - A setting that all callers have to agree on is the data of the parent, as in
//     Semaphore.agreed. A child of the parent whose name line.Parse refuses, such as the
//     "ready" of a barrier, is no place. Package internal/once writes what outlives a session.
//   - Put the recipe into the table of history_test.go, with the units that a caller takes. If a
//     holder keeps the next caller waiting, put it into everyAsk (acl_test.go) too. The tests of
//     lost messages, lost holders and ACLs then cover it. Add the recipe to the list above, and
//     give it Participants if operators want to see them.
package recipes
