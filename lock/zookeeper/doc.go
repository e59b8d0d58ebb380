// Package zookeeper takes locks in ZooKeeper. It serves [idem.Locker] for services that
// run in several instances. The other recipes of coordination on the same session are in
// the packages beside it:
//
//   - [Locker]: an exclusive lock per key, one znode, no order among waiters.
//   - Package recipes: fair mutexes, read-write locks, semaphores, elections, registers.
//   - Package queue: first in, first out, with or without acknowledgement.
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
//   - Two leases of one key are never both believed in. A [Lease] is Done, and its Check
//     fails, before the ensemble could give the lock to another owner, as long as the
//     process runs. Only acknowledged writes count for this, because a server that was cut
//     off from its quorum goes on answering pings and reads. Package internal/session has
//     the reasoning.
//   - A later lease of a key has a greater fence, whatever was deleted and created in
//     between, parents and markers included.
//   - A marker is left, replaced or removed in the transaction that releases the lock, or
//     not at all, and only by the lock's holder.
//   - A TryAcquire that failed or was given up leaves no znode. What it made is removed in
//     the background, and so is a lock whose release was not acknowledged. This package
//     never removes another owner's lock.
//   - No call hangs. While the ensemble is known to be unreachable, every call fails at
//     once with [idem.ErrUnavailable]. A call that is under way at that moment ends with
//     its context, or when the session cannot be trusted any more, whichever is first. Only
//     Release waits until the session is over, as long as its context lets it.
//
// # What is not
//
//   - A process that is paused past its session (SIGSTOP, a suspended machine, a long
//     collection) cannot notice before it runs again. Then Err and Check tell of the loss at
//     once, and Done is closed within a twentieth of the session. Only a resource that
//     checks the fence refuses what the process does before it asks.
//   - A virtual machine that is paused, migrated or restored from a checkpoint may not be
//     told how long that took, and then believes in its leases for so much longer. On
//     systems other than Linux the same holds for a suspended machine whose monotonic clock
//     stands still.
//   - [Config].TickTime has to be the servers', and clocks may differ in speed by 5 % at
//     most. Otherwise a lease may be believed for too long.
//   - Waiters of a Locker are not served in order.
//   - A znode deleted by hand is noticed at Check and at Release. If an operator deletes the
//     lock of a running request within a second of its being taken, the release may remove
//     the next owner's lock or marker.
//   - Without [Config].Credentials, a client certificate or an ACL of one's own, every
//     client that reaches the ensemble can delete a lock.
//
// # Why two levels
//
// ZooKeeper counts the changes of a znode's children in 32 bits. At 10,000 locks a second
// one flat parent overflows in two and a half days. 4,096 parents last for decades. They
// also keep each list of children below the size of a packet. The client makes the 4,096
// parents in the background after its first lock, or the locks that come earlier make them
// (parents.go). They are never removed.
//
// # Where to read
//
//   - internal/session: one ZooKeeper session. Every write is pinned to it, so that the
//     write fails if the session is gone. A barrier settles a lost reply, and a deciding
//     read tells then what was applied.
//   - internal/held: one ephemeral znode from its create until it is gone: the claim of its
//     path, the attempt, the lease, the release.
//   - acquire.go, locker.go, wait.go: the plain lock.
//   - marker*.go: durable markers.
package zookeeper
