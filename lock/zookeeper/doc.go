// Package zookeeper takes locks in ZooKeeper: those behind [idem.Locker], for
// services that run in several instances, and the other recipes of coordination
// on the same session.
//
//   - [Locker]: an exclusive lock per key, one znode, no order among waiters.
//   - [Mutex] and [ReentrantMutex]: fair exclusive locks.
//   - [RWMutex]: a fair lock that readers share.
//   - [Semaphore]: a fair one for a number of permits.
//   - [Election]: one leader at a time, and who it is.
//   - [Queue]: first in, first out, with or without acknowledgement.
//   - [Register]: a small value with a version.
//
// All take a context first, give a [Lease] that tells when it is lost, and have a
// fencing token. The fair ones are lines of places (line.go, place.go, turn.go).
//
// A [Client] keeps one session with the ensemble. A key's lock is an ephemeral
// znode
//
//	/lock/<first 3 hex digits of the key ID>/<other 61>
//
// that exists exactly as long as its holder wants it to, or as its holder's
// session lives. Its czxid is the fencing token, its data names the holder. (Places
// in the lines of the other recipes have fencing tokens of another kind; see
// [Lease.Fence].)
//
// # What is guaranteed
//
//   - Two leases of one key are never both believed in: a [Lease] is Done, and
//     its Check fails, before the ensemble could give the lock to anybody else,
//     as long as the process runs. See the type clock for the reasoning, which
//     counts acknowledged writes only: a server that was cut off from its
//     quorum goes on answering pings and reads.
//   - A later lease of a key has a greater fence, whatever was deleted and
//     created in between, parents and markers included.
//   - A marker is left, replaced or removed in the transaction that releases the
//     lock, or not at all, and by the lock's holder alone.
//   - What a TryAcquire that failed, or was given up, may have left on the
//     servers is removed in the background; so is a lock whose release was not
//     acknowledged. Nothing here ever removes another owner's lock.
//   - Nothing hangs: while the ensemble is known to be unreachable every call
//     fails at once with [idem.ErrUnavailable]; a call under way when it
//     becomes so ends with its context, or when the session cannot be trusted
//     any more, whichever is first. Only Release waits until the session is
//     over, as long as its context lets it.
//
// # What is not
//
//   - A process that is paused (SIGSTOP, a suspended machine, a long
//     collection) past its session cannot notice before it runs again. From then
//     on Err and Check tell of the loss at once, and Done is closed within a
//     twentieth of the session. What the process does before it asks is refused
//     only by a resource that checks the fence.
//   - A virtual machine that is paused, migrated or restored from a checkpoint may
//     not be told how long that took, and then believes in its leases for so much
//     longer. On systems other than Linux the same holds for a suspended machine
//     whose monotonic clock stands still.
//   - [Config].TickTime has to be the servers', and clocks may differ in speed
//     by 5 % at most, or a lease may be believed for too long.
//   - Waiters of a Locker are not served in order.
//   - Places that Apache Curator, kazoo or go-zookeeper made at the same path are
//     ignored, and they ignore the places of this package. While both are in use,
//     in a rolling migration for one, a lock has two holders: stop every client of
//     the other library first.
//   - A znode deleted by hand is noticed at Check and at Release, and before
//     that only by leaders, by holders with a listener, and where
//     [Lease.Revoked] was asked for.
//     An operator who deletes the lock of a running request within a second of
//     its being taken may see the next owner's lock, or marker, removed with it.
//   - Without [Config].Credentials, a client certificate or an ACL of one's own
//     anybody who reaches the ensemble can delete a lock.
//
// # Why two levels
//
// ZooKeeper counts the changes of a znode's children in 32 bits. At 10,000
// locks a second one flat parent overflows in two and a half days; 4,096
// parents last for decades. It also keeps a list of children, should somebody
// ask for one, below the size of a packet. The 4,096 parents are made in the
// background after a client's first lock, or by the locks that come before that
// (parents.go), and never removed.
//
// # How it is done
//
//	starting ──▶ up ◀──▶ suspended ──▶ over, and a new session is started
//	              └────────────────────▲
//
// Every write is pinned to its session, so that it fails if the session is gone,
// and all go through one place (writer.go), where those that wait share a
// transaction (batch.go; refused.go where one of them is refused). A server may be
// behind. So only a read over a confirmed connection decides (read.go), and a server
// that is behind the session refuses it (zxid.go). A lost reply is settled by a barrier
// (pulse.go): once a later write of the session is acknowledged, the earlier one
// has been applied or never will be, and a read tells which (create.go,
// release.go). Per path and session one operation is under way at a time
// (slots.go).
package zookeeper
