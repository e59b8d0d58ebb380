// Package zookeeper takes locks in ZooKeeper. Its [Locker] implements [driver.Locker] for
// services with several instances. It takes an exclusive lock per key, and does not serve
// waiters in order. Two packages have other ways to coordinate over the same session.
//
//   - Package recipes has fair mutexes, read-write locks, semaphores, elections and
//     registers.
//   - Package queue has queues, first in, first out, with or without acknowledgement.
//
// A [Client] keeps one session with the ensemble. The lock of a key is an ephemeral znode
//
//	/lock/<first 3 hex digits of the key ID>/<other 61>
//
// It exists until its holder releases the lock, or until the holder's session ends. Its
// czxid is the fencing token, and its data names the holder.
//
// # What is guaranteed
//
//   - At most one lease of a key is trusted at a time. A [Lease] is Done, and its Check
//     fails, before the ensemble could give the lock to another owner, as long as the
//     process runs. Only acknowledged writes renew the trust, because a server that is cut
//     off from its quorum goes on answering pings and reads. Package internal/session has
//     the reasoning.
//   - A later lease of a key has a greater fence, even if parents or markers were deleted
//     and created in between.
//   - A marker is left, replaced or removed in the transaction that releases the lock, or
//     not at all, and only by the lock's holder.
//   - If a TryAcquire failed or was given up, the client removes its znode in the
//     background. It does the same with a lock whose release was not acknowledged. The
//     package never removes another owner's lock, unless an operator deletes locks by hand
//     (see below).
//   - No call hangs. While the ensemble is known to be unreachable, every call fails at
//     once with [driver.ErrUnavailable]. A call under way at that moment ends with its
//     context, or when the session cannot be trusted any more, whichever is first. Only
//     Release waits longer, until its context ends or the session is over.
//
// # What is not
//
//   - A process that is paused past its session (SIGSTOP, a suspended machine, a long
//     collection) cannot notice before it runs again. Then Err and Check tell of the loss at
//     once, and Done is closed within a twentieth of the session. If the process writes
//     before it checks, only a resource with a check of the fence refuses the write.
//   - A virtual machine may be paused, migrated or restored from a checkpoint, and may not
//     learn how long this took. It then trusts its leases for so much longer. The same holds
//     for a suspended machine on systems other than Linux, if the monotonic clock stands
//     still.
//   - [Config].TickTime has to be the tick of the servers, and clocks may differ in speed by
//     5 % at most. All servers have to grant the same session time-out (maxSessionTimeout). If the client
//     hears another one, its leases end. If that answer is lost, or if one of these three is wrong, a lease may be
//     trusted for too long. It also may if the leader stays without a sign of the session for more than a tick
//     before a write of it, and then loses the client's server (the reason is in internal/session/clock.go).
//   - Waiters of a Locker are not served in order.
//   - A znode deleted by hand is noticed at Check and at Release. If an operator deletes the
//     lock of a running request within a second of its being taken, the release may remove
//     the next owner's lock or marker. The same can happen to an older lock, if the operator
//     deletes it during its release, after the release has read the znode.
//   - Every client of the ensemble can delete a lock, unless [Config] has Credentials, a
//     client certificate or an ACL.
//
// # Why one fixed path
//
// The lock of a key has one path, and its owner is in the znode's data. The recipes have the owner
// in the name instead, with a number from the servers. Their places form a line.
//
//   - The servers create a znode only if its path is free. So two owners cannot both have the
//     lock, not even if the create of an earlier attempt is still on its way. A line needs a list
//     to tell who is first, and a second look for a place whose create got no answer.
//   - Taking a free lock is one write. A line needs the list as well, and a parent for each key.
//   - A key is free, locked or marked. All three states are at the same path, so a marker takes
//     the place of a lock in one transaction.
//   - The czxid of the znode is the fence as it is.
//
// This has a price. All waiters of a key wake at once, in no order, but a key has few of them,
// because they are repeats of one request. After a lost reply the client has to read the znode's
// data to know its own. And a delete names a path and not an owner. Three things keep it from another
// owner's lock: the claim within the session, the pin against a session that is over, and a read
// before the delete of a lock that is older than a second.
//
// # Why two levels
//
// ZooKeeper counts the changes of a znode's children in 32 bits. At 10,000 locks a second
// one flat parent overflows in two and a half days. 4,096 parents last for decades. They
// also keep each list of children below the size of a packet. A new session lists the
// existing parents once (session.go). If the parent of a lock is missing, the lock's own
// transaction makes the parent too (lock.go). Parents are never removed.
//
// # Where to read
//
//   - internal/session keeps one ZooKeeper session. Every write is pinned to the session and
//     fails if the session is gone. After a lost reply a deciding read tells whether the
//     write was applied.
//   - internal/held takes care of one ephemeral znode, from its create until it is gone.
//   - config.go has the settings, and paths.go the paths of all znodes. client.go is the client.
//     session.go prepares a new session for locks.
//   - lock.go makes and deletes the lock. lease.go is the lease, locker.go and wait.go are the
//     Locker.
//   - marker.go has the states of a key with a durable marker. marker_begun.go writes a marker before
//     its operation starts. marker_remove.go removes old markers.
//   - domain.go notices that the ensemble came back with older data. acl_open.go finds znodes that
//     every client may change.
//
// # To see why the plain lock is safe
//
// Read these files in this order. TestReadingList counts their lines. They do not need the files about
// markers, because lock.go says what it asks of them.
//
//   - ../../idem/driver/lock.go has the contract of a locker, a lease and a fence.
//   - internal/wire/doc.go keeps requests out of other sessions, and stale servers out of this
//     one.
//   - internal/session/doc.go lists the guarantees of a session.
//   - internal/session/clock.go explains why a lease ends before its session.
//   - internal/session/trust.go ends all leases when the clock says so.
//   - internal/session/result.go tells how certain the answer to a write is.
//   - internal/session/requests.go pins a write to the session.
//   - internal/session/writes.go sends the writes, and one that was refused along with others again.
//   - internal/session/read.go explains why a deciding read settles a lost reply.
//   - internal/held/doc.go shows the life of a lock's znode.
//   - internal/held/table.go gives one attempt at a time the claim of a path.
//   - internal/held/attempt.go gives out a lease, or undoes an abandoned attempt.
//   - internal/held/lease.go is the lease, and ends it once.
//   - internal/held/release.go deletes only the holder's own znode.
//   - lock.go makes and deletes the lock, and shows why two owners never both get it.
//   - locker.go takes locks for callers.
//
// Two small parts are elsewhere: whether an owner is the same (Same in internal/held/owner.go, which compares the
// instance of the client and the try), and what a call asks before it believes its session (Settled in
// internal/session/status.go). How a caller waits does not make the lock safe or unsafe: wait.go and
// internal/session/watch.go.
package zookeeper
