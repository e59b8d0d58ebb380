// Package redislock takes exclusive locks in Redis 6.2 or later. Redis may be one server, a
// server behind Sentinel, or a cluster. The package is an [idem.Locker] for services that
// run in several instances without ZooKeeper.
//
// # What is guaranteed
//
// While the Redis that granted a lock keeps its data, and the process runs:
//
//   - At most one lease of a key is trusted at a time. A lock is a key with a time to live,
//     [WithTTL], and a heartbeat renews it. A lease ends nine tenths of that time after the
//     last acknowledged renewal was sent: Done closes, and Check fails. The clock goes on
//     while the machine is suspended (CLOCK_BOOTTIME on Linux). Redis lets the key expire
//     only after that.
//   - A later lease of a key has a greater fence. The script that takes the lock also writes
//     the counter.
//   - A failed TryAcquire may leave a lock in Redis. The locker removes it in the background,
//     as it does with a lock whose release was not acknowledged. It never removes another
//     owner's lock.
//   - A process that dies leaves its locks for the rest of their time to live, and no longer.
//     Requests for their keys are refused until then.
//   - While Redis does not answer, calls fail at once with [idem.ErrUnavailable]. One call in
//     a while looks again.
//
// # What a fail-over can lose
//
// Replication is asynchronous: Redis acknowledges a lock before its replicas have it. If the
// primary fails then and a replica is promoted, the lock is gone. The next caller gets it
// *while the first holder still trusts its own lease*, until the next heartbeat a third of
// the time to live later. If the first holder cannot reach the new primary, it trusts its
// lease for the whole time to live. Locks are also lost
//
//   - by a primary that restarts from an old snapshot, from an append-only file without its
//     tail, or empty
//   - by a primary that was cut off and still grants locks beside its successor
//   - by FLUSHALL.
//
// During that time both handlers run. Only two things then stop the second effect:
//
//   - The fence, if the resource checks it. The new lease has a greater one (see below), so
//     the resource refuses the older holder after the new one.
//   - The record in the token store, if the store did not lose it too. A store in the same
//     Redis fails over together with the lock and stops nothing.
//
// An engine that finds a pending record under an earlier fence of the same domain concludes
// that the holder's lease is over, and asks the resolver. After a fail-over the holder may
// still run. A resolver that raises the fence at the resource before it looks is right even
// then. A resolver that only looks is not, and neither is a route that runs again in doubt.
//
// WAIT and min-replicas-to-write make such a loss rarer but do not exclude it. A majority of
// independent servers (Redlock) does not exclude it either, so this package does not use
// one. See "Distributed Locks with Redis",
// https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, and
// M. Kleppmann, "How to do distributed locking" (2016),
// https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
//
// # What else is not guaranteed
//
//   - A process that is paused past its time to live (SIGSTOP, a suspended machine, a long
//     collection) notices when it runs again. From then on Err and Check report the loss at
//     once, and Done closes within a twentieth of the time to live. A write before the first
//     check is refused only by a resource that checks the fence.
//   - A virtual machine that is paused, migrated or restored from a checkpoint may not learn
//     how long that took. It then trusts its leases for that much longer. So does a suspended
//     machine with a system other than Linux whose monotonic clock stands still.
//   - Redis expires keys by its wall clock. A clock that jumps ahead by more than a twentieth
//     of the time to live lets locks expire while their leases are trusted. The clock of a
//     promoted replica may be ahead too.
//   - The request of a TryAcquire that was given up may arrive after it was undone. It then
//     blocks its key for one time to live, without a lease.
//   - Waiters get the lock in no particular order. They ask again every 5 to 250 ms.
//   - Heartbeats share the client's pool, and wait while all its connections are busy.
//
// Package lock/zookeeper does not lose locks in a fail-over: a quorum agrees on a lock before
// it is granted, and the lock exists exactly as long as its holder's session. Prefer it if a
// handler's effect cannot be fenced.
//
// # Fences and domains
//
// A fence is the server's time in microseconds, or the shard's last fence plus one if that is
// greater. So it rises over a fail-over that lost the last fences, unless the new primary's
// clock is behind the old one's by more than the duration of the fail-over. In that case a
// fence may be given twice, or a lower one after a higher. The resource then refuses a
// rightful holder, or cannot tell two holders apart.
//
// The domain is a UUID in the same key as the last fence. Each of the 64 shards has one. A
// Redis that lost its data makes new domains, so its fences are not compared with earlier
// ones. A record that is pending under a former domain stays in progress, because there is no
// proof that its holder is gone.
//
// # Layout
//
// Keys, with the prefix "idem". The braces keep the keys of one script in one slot of a
// cluster. The token store in Redis uses other keys, so both may share the prefix.
//
//	idem:{2a}:lock:<key ID>  a lock: "owner fence domain nonce", with a time to live
//	idem:{2a}:fences         hash of domain and last
package redislock
