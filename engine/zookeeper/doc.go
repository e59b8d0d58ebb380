// Package idemzk makes an engine with locks in ZooKeeper and records in Redis, for services whose handlers call other systems:
//
//	client, err := redisstore.Connect("redis://redis:6379")
//	ensemble := zookeeper.Config{Servers: []string{"zk1:2181", "zk2:2181", "zk3:2181"}}
//	engine, err := idemzk.New(ctx, ensemble, client, idemzk.WithDurableMarkers(time.Hour))
//
// # What it guarantees
//
// An operation has at most one automatic execution per key through repeats, an outage, a crash, a jump of Redis's clock and the loss of all
// records, and also through a pause if the resource checks the fence. [WithDurableMarkers] adds the fail-over of Redis, which may
// lose the latest records. With [WithoutDurableMarkers] a key may run again then. Nobody but you can weigh this against the
// cost of markers, so New wants one of the two. A completed outcome is replayed. An outcome that cannot be known is surfaced as
// unknown. [idem.Engine.Guarantee] says the same as a value, and Require of a policy refuses a start where a route needs more.
//
// The store has a witness in ZooKeeper, a znode that remembers which Redis has the records. If Redis has lost them, new keys are
// refused as store-lost until an operator has looked (idemctl store accept).
//
// # What it costs
//
// A fresh key takes three round trips to Redis and two writes of ZooKeeper, which requests of the same moment share. The second one follows after the
// answer. Markers add one write before the handler, and 600 bytes a key in the memory of each server of the ensemble for as long as they
// are kept. A repeat takes one round trip to Redis. The lock of a dead process stays for its session, 10 s by default.
//
// # What it needs
//
//   - An ensemble of three servers or more, reached with credentials or a client certificate. Otherwise every client of the ensemble
//     can delete locks, and New warns.
//   - Redis as for package idemredis.
//   - A prefix of its own for each service that shares an ensemble (redisstore.WithPrefix). Records, locks, markers and witness
//     follow it: see [LockRoot] and [redisstore.WitnessPath]. A chroot of its own (Chroot of zookeeper.Config) does the same for everything
//     that the service does in ZooKeeper.
//   - The choice of InDoubt in the policy of each route, because a crash may leave an outcome in doubt.
//   - [idem.Engine.Close] at the end. It waits for handlers and ends the session. If handlers are left, their locks outlive the process by the
//     session time-out. The client of Redis stays open.
//
// The recipes of ZooKeeper work in the session of the engine, for example recipes.NewElection(engine.Locker().(*zookeeper.Locker).Client(), …).
// A sweeper leads by a lock of the engine: sweeper.ByLock(engine.Locker(), "payments").
//
// # A service that was wired by hand
//
// Its locks are below "/lock", whatever its prefix, and its witness may be at a path of its own. So if its prefix is not the default,
// set Root of the Config to "/lock", and if its witness is not at [redisstore.WitnessPath], name it by [WithWitnessPath]. Otherwise old and new
// instances do not see each other's locks. The records tell the new ones of the operations of the old ones, which stay in progress then.
//
// Markers are beside the locks. If other services have their locks below the same Root, leave [WithDurableMarkers] out until each has a Root of
// its own, because it would remove their markers after the retention of this service.
package idemzk
