// Package zookeeper takes locks in ZooKeeper for services that run in several instances.
//
// A [Client] keeps one session with the ensemble. A [Locker] of it implements
// [idem.Locker]: an exclusive lock per key, one znode, no order among waiters. Package
// recipes has fair mutexes, read/write locks, semaphores, elections and registers on the
// same client, and package queue has a queue.
//
// A key's lock is an ephemeral znode
//
//	/lock/<first 3 hex digits of the key ID>/<other 61>
//
// It exists until its holder gives it back or the holder's session ends. Its czxid is the
// fencing token. Its data names the holder.
//
// # What is guaranteed
//
//   - Two leases of one key are never trusted at the same time. A lease is Done, and its
//     Check fails, before the ensemble could give the lock to another client, as long as
//     the process runs. Package internal/session gives the reasoning. Only acknowledged
//     writes count, since a server that is cut off from its quorum goes on answering pings
//     and reads.
//   - A later lease of a key has a greater fence, also if parents and markers were deleted
//     and created in between.
//   - A marker is left, replaced or removed in the transaction that releases the lock, or
//     not at all, and only by the lock's holder.
//   - The znodes of a failed or abandoned TryAcquire are removed in the background, and so
//     is a lock whose release was not acknowledged. The package never removes another
//     owner's lock.
//   - No call hangs. While the ensemble is known to be unreachable every call fails at once
//     with [idem.ErrUnavailable]. A call under way ends with its context, or when the
//     session cannot be trusted any more. Only Release waits for the end of the session,
//     as long as its context lets it.
//
// # What is not
//
//   - A process that is paused past its session (SIGSTOP, a suspended machine, a long
//     collection) cannot notice before it runs again. From then on Err and Check tell of
//     the loss at once, and Done is closed within a twentieth of the session. Until the
//     process asks, only a resource that checks the fence refuses its work.
//   - A virtual machine that is paused, migrated or restored from a checkpoint may not be
//     told how long that took. It then trusts its leases for so much longer. On systems
//     other than Linux the same holds for a suspended machine if its monotonic clock stands
//     still.
//   - [Config].TickTime has to be the servers', and clocks may differ in speed by 5 % at
//     most. Otherwise a lease may be trusted for too long.
//   - Waiters of a Locker are not served in order.
//   - Places made by Apache Curator, kazoo or go-zookeeper at the same path are ignored,
//     and those libraries ignore the places of this module. While both are in use, for
//     example in a rolling migration, a lock has two holders. Stop every client of the
//     other library first.
//   - A znode deleted by hand is noticed at Check and at Release. Before that, only
//     leaders, holders with a listener and callers of Revoked notice it. An operator who
//     deletes the lock of a running request within a second of its being taken may see
//     the next owner's lock, or marker, removed with it.
//   - Without [Config].Credentials, a client certificate or an ACL of its own, every client
//     of the ensemble can delete a lock.
//
// # Why two levels
//
// ZooKeeper counts the changes of a znode's children in 32 bits. At 10,000 locks a second
// one flat parent overflows in two and a half days. 4,096 parents last for decades, and
// keep a list of children below the size of a packet. The parents are made in the
// background after a client's first lock, or by the locks that come before that
// (parents.go). They are never removed.
//
// # How it is done
//
//	starting ──▶ up ◀──▶ suspended ──▶ over, and a new session is started
//	              └────────────────────▲
//
// Package internal/session keeps the session. Every write is pinned to it and fails if it
// is gone. Writes that wait share a transaction. A server may be stale, so only a read
// over a confirmed connection decides. A lost reply is settled by a later write of the
// session. Once that is acknowledged, the earlier write has been applied or never will be,
// and a read tells which. Per path and session one operation is under way at a time.
package zookeeper
