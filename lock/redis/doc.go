// Package redislock takes exclusive locks in Redis 6.2 or later: one server, one
// behind Sentinel, or a cluster. It is an [idem.Locker] for services that run
// in several instances and have no ZooKeeper.
//
// # What is guaranteed
//
// While the Redis that granted a lock keeps its data, and the process runs:
//
//   - Two leases of one key are never both believed in. A lock is a key with a
//     time to live, [WithTTL], that a heartbeat renews. A lease is Done, and its
//     Check fails, after nine tenths of that time since the last renewal was
//     sent, by a clock that goes on while the machine is suspended (CLOCK_BOOTTIME
//     on Linux): before Redis lets the key expire.
//   - A later lease of a key has a greater fence. The counter behind it is
//     written by the script that takes the lock.
//   - What a TryAcquire that failed, or was given up, may have left in Redis is
//     removed in the background. So is a lock whose release was not acknowledged.
//     Nothing here removes another owner's lock.
//   - A process that dies without a word leaves its locks for the rest of their
//     time to live, and no longer. Until then their keys are refused.
//   - While Redis is known to be unreachable, all but a call now and then, which
//     looks again, fail at once with [idem.ErrUnavailable].
//
// # What a fail-over can lose
//
// Replication is asynchronous: Redis acknowledges a lock before its replicas
// have it. If the primary fails then, and a replica is promoted, the lock is
// gone, and the next who asks gets it *while the first holder still believes in
// its own*: until its next heartbeat, a third of the time to live later, or for
// all of it where it cannot reach the new primary. So can a primary lose locks
// that is restarted from an old snapshot, from an append-only file without its
// tail, or with nothing; one that was cut off and goes on granting locks beside
// its successor; and a FLUSHALL. During that time both run. What stops the
// second effect then is only
//
//   - the fence, where the resource checks it. The new lease has a greater one
//     (see below), so the older holder is refused once the new one has been there;
//   - the record in the token store, where that did not lose it too. A store in
//     the same Redis fails over together with the lock, and then stops nothing.
//
// An engine that finds a pending record under an earlier fence of the same
// domain takes that holder's lease to be over, and asks the resolver. After a
// fail-over it may still run. A resolver that raises the fence at the resource
// before it looks is right even then; one that only looks is not, and neither
// is a route that re-runs in doubt.
//
// WAIT and min-replicas-to-write make it rarer, and do not exclude it. Neither
// does asking several independent servers (Redlock), which is why that is not
// done here. See "Distributed Locks with Redis",
// https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/, and
// M. Kleppmann, "How to do distributed locking" (2016),
// https://martin.kleppmann.com/2016/02/08/how-to-do-distributed-locking.html.
//
// # What else is not guaranteed
//
//   - A process that is paused (SIGSTOP, a suspended machine, a long
//     collection) past its time to live cannot notice before it runs again. From
//     then on Err and Check tell of the loss at once, and Done is closed within a
//     twentieth of the time to live. What the process does before it asks is refused
//     only by a resource that checks the fence.
//   - A virtual machine that is paused, migrated or restored from a checkpoint may
//     not be told how long that took, and then believes in its leases for so much
//     longer. On systems other than Linux the same holds for a suspended machine
//     whose monotonic clock stands still.
//   - Redis expires keys by its wall clock. A clock that is set forward, or that
//     of a promoted replica that is ahead, by more than a twentieth of the time
//     to live lets locks expire while they are believed in.
//   - A request to take a lock that was given up may still be on its way, and
//     arrive after it was undone. It then blocks its key for one time to live;
//     nobody believes in such a lock.
//   - Waiters are not served in order, and ask again every 5 to 250 ms.
//   - The client's pool is shared: where all its connections are busy for long,
//     heartbeats wait, too.
//
// Package lock/zookeeper has none of the losses of a fail-over: its locks are
// agreed on by a quorum before they are granted, and exist exactly as long as
// their holder's session. Prefer it where a handler's effect cannot be fenced.
//
// # Fences and domains
//
// A fence is the server's time in microseconds, or the shard's last fence plus
// one where that is greater. It therefore grows over a fail-over that lost the
// last ones too, as long as the new primary's clock is not behind the old one's
// by more than the fail-over took. Where it is, one fence may be given twice, or
// a lower one after a higher; the resource then refuses a rightful holder, or
// cannot tell two apart.
//
// The domain is a UUID that is kept beside the last fence, in the same key, one
// for each of 64 shards. A Redis that lost its data makes new ones, so that its
// fences are not compared with those before the loss. A record that is pending
// under a former domain stays in progress: nothing proves that its holder is
// gone.
//
// # Layout
//
// Keys, with the prefix "idem"; the braces keep what one script needs in one
// slot of a cluster. They do not meet those of tokenstore/redis, which may use
// the same prefix.
//
//	idem:{2a}:lock:<key ID>  a lock: "owner fence domain nonce", with a time to live
//	idem:{2a}:fences         hash of domain and last
package redislock
