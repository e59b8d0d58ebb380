// Package redislock takes exclusive locks in Redis 6.2 or later. Redis may be one server, a
// server behind Sentinel, or a cluster. The package is an [driver.Locker] for services with
// several instances and without ZooKeeper.
//
// Requests that wait at the same moment share a pipeline. A Release whose context is
// cancelled may return only when Redis answers, after two seconds at most.
//
// # What is guaranteed
//
// The following holds while the process runs and Redis keeps its data.
//
//   - At most one lease of a key is trusted at a time. A lock is a key with a time to live,
//     [WithTTL], and a heartbeat renews it. A lease ends nine tenths of that time after the
//     last acknowledged renewal was sent. Then Done closes, and Check fails. The clock goes
//     on while the machine is suspended (CLOCK_BOOTTIME on Linux). Redis lets the key expire
//     only later.
//   - A later lease of a key has a greater fence. One script takes the lock and writes the
//     counter.
//   - A failed TryAcquire may leave a lock in Redis. The locker removes it in the background.
//     It does the same with a lock whose release was not acknowledged. It never removes
//     another owner's lock.
//   - The locks of a dead process stay for the rest of their time to live. Requests for their
//     keys are refused until then. If Redis's clock was set back, they stay for one time to live
//     after the next request.
//   - While Redis does not answer, calls fail at once with [driver.ErrUnavailable]. One call in
//     a while looks again.
//
// # What a fail-over can lose
//
// Replication is asynchronous. Redis acknowledges a lock before its replicas have it. If the
// primary fails then and a replica is promoted, the lock is gone. The next caller gets it
// *while the first holder still trusts its own lease*, until the next heartbeat a third of
// the time to live later. If the first holder cannot reach the new primary, it trusts its
// lease for the whole time to live. Locks are also lost
//
//   - if a primary restarts from an old snapshot, from an append-only file without its tail,
//     or empty
//   - if a primary was cut off and still grants locks beside its successor
//   - by FLUSHALL.
//
// During that time both handlers run. Only two things then stop the second effect:
//
//   - The fence, if the resource checks it. The new lease has a greater one (see below), so
//     the resource refuses the older holder after the new one.
//   - The record in the token store, if the store did not lose it too. A store in the same
//     Redis fails over together with the lock and stops nothing.
//
// An engine may find a pending record under an earlier fence of the same domain. It concludes
// that the holder's lease is over, and asks the resolver. After a fail-over the holder may
// still run. A resolver is right even then if it raises the fence at the resource before it
// looks. A resolver that only looks may be wrong, and so may a route that runs again in
// doubt.
//
// WAIT and min-replicas-to-write make such a loss rarer but do not exclude it. While too few
// replicas are there, min-replicas-to-write also refuses heartbeats, so leases end after their
// time to live. A majority of
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
//     once, and Done closes within a twentieth of the time to live. If the process writes
//     before it checks, only a resource with a check of the fence refuses the write.
//   - A virtual machine may be paused, migrated or restored from a checkpoint, and may not
//     learn how long this took. It then trusts its leases for so much longer. The same holds
//     for a suspended machine on systems other than Linux, if the monotonic clock stands
//     still.
//   - Redis expires keys by its wall clock. A clock that jumps ahead by more than a twentieth
//     of the time to live lets locks expire while their leases are trusted. The clock of a
//     promoted replica may be ahead too.
//   - If a TryAcquire was given up, its request may arrive after the locker has undone it.
//     The request then blocks its key for one time to live, without a lease.
//   - If a heartbeat is under way when a store gives a lock back together with a settlement, the lease may
//     count as lost.
//   - Waiters get the lock in no particular order. They ask again every 5 to 250 ms.
//   - Heartbeats share the client's pool, and wait while all its connections are busy.
//
// Package lock/zookeeper does not lose locks in a fail-over. A quorum agrees on a lock before
// it is granted, and a lock that is not released exists exactly as long as its holder's
// session. Prefer that package if a handler's effect cannot be fenced.
//
// # Fences and domains
//
// A fence is the server's time in microseconds, or the shard's last fence plus one, whichever
// is greater. So it rises even over a fail-over with a loss of the last fences. The exception
// is a new primary whose clock lags the old one's by more than the duration of the
// fail-over. Redis may then give a fence twice, or a lower one after a higher. The resource
// refuses a rightful holder, or cannot tell two holders apart.
//
// The domain is a UUID in the same key as the last fence. Each of the 64 shards has one. If
// Redis lost its data, it makes new domains, so its fences are not compared with earlier
// ones. A pending record under a former domain stays in progress, because there is no proof
// that its holder is gone.
//
// # Layout
//
// Keys, with the prefix "idem". The braces keep the keys of one script in one slot of a
// cluster. The token store in Redis uses other keys, so both may share the prefix.
//
//	idem:{2a}:lock:<key ID>  a lock: "owner fence domain nonce pid@host ttl", with that time to live in ms
//	idem:{2a}:fences         hash of domain and last
package redislock
