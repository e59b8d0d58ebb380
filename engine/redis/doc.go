// Package idemredis makes an engine on Redis alone, for services whose handlers call other systems:
//
//	client, err := redisstore.Connect("redis://redis:6379")
//	engine, err := idemredis.New(ctx, client)
//
// # What it guarantees
//
// An operation has at most one automatic execution per key through repeats, an outage and a crash, and also through a pause if the
// resource checks the fence. A completed outcome is replayed. An outcome that cannot be known is surfaced as unknown.
//
// It does not hold through a fail-over of Redis, a jump of its clock, and the loss of its data. In a fail-over the lock and the record of
// a key may be lost together, and the key runs again. Running instances notice that Redis lost all of its records, and refuse
// new keys. An instance that starts later notices nothing. Package idemzk is for services that need more.
// [idem.Engine.Guarantee] says the same as a value, and Require of a policy refuses a start where a route needs more.
//
// # What it costs
//
// A fresh key takes two round trips to Redis: one looks, locks and begins, and the other one stores the outcome and gives the lock back. A repeat takes
// one. A heartbeat renews the locks of slow handlers three times in their time to live. The lock of a dead process stays for its time to live,
// 10 s by default.
//
// # What it needs
//
//   - Redis 6.2 or later with maxmemory-policy noeviction, or New refuses. An append-only file, or New warns. With appendfsync
//     always, a power cut loses nothing.
//   - A client with ContextTimeoutEnabled that reads from primaries, such as that of redisstore.Connect. One server,
//     Sentinel and a cluster will do.
//   - A prefix of its own for each service that shares a Redis (redisstore.WithPrefix). The locks follow it.
//   - The choice of InDoubt in the policy of each route, because a crash may leave an outcome in doubt.
//   - [idem.Engine.Close] at the end. It waits for handlers and gives the locks back. Locks of handlers that are left stay for their time to
//     live. The client stays open.
//
// Useful options are redislock.WithTTL, redisstore.WithReplicas, [WithLogger], sealed.Responses, which encrypts the stored answers, and all
// options of package idem. A sweeper leads by a lock of the engine: sweeper.ByLock(engine.Locker(), "payments").
package idemredis
