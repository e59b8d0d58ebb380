// Package redisstore keeps idempotency records in Redis 6.2 or later. Redis may be one
// server, a server behind Sentinel, or a cluster.
//
// # What is guaranteed
//
// Every change is one Lua script. It is atomic, uses the server's clock, and has no
// further effect if it is sent twice. Reads come from the primary. Redis holds the hashes
// of keys and tokens, and never the keys and tokens themselves.
//
// The store notices a loss of records in Redis, shard by shard. Begin and Issue then fail
// with driver.ErrStoreLost until an operator has called [Store.AcceptLoss]. For this each
// shard holds a UUID, its incarnation, and every Begin carries and compares it. In a
// cluster the shards of the other primaries go on. [WithWitness] keeps a copy of the
// incarnations outside of Redis. Processes started after the loss then notice it too.
// Without a witness each process compares with the incarnations from its own start. A
// store in use asks its witness every two seconds whether its Redis is still the right
// one, and refuses otherwise. So two instances with different addresses are not served
// side by side for longer.
//
// [WithLossAcceptance] makes the store accept empty shards by itself. It is safe only if
// every instance has left durable markers for longer than clients repeat a request. A key
// completed without a marker runs again. A wrong address looks like a loss.
//
// With [WithReplicas] a Begin succeeds only after replicas have acknowledged the pending
// record, so each of these replicas has it after a promotion. If too few acknowledge, the
// Begin is refused and the handler does not run.
//
// After a result has expired, the store remembers its key until the KeyTTL. With an
// append-only file it does so over restarts of Redis too.
//
// # What is not guaranteed
//
// If Redis comes back with older data and the same incarnation, the store sees no loss.
// This happens after a fail-over to a stale replica, with an old snapshot, or with an
// append-only file without its tail. A lost pending record leaves no trace, and its key
// begins again at attempt 1. Run Redis with appendfsync always, or at least everysec, and
// use [WithReplicas]. This does not help if Redis promotes a replica without the
// acknowledged record, or if a replica restarts empty after its acknowledgement. Settle
// does not wait for replicas. After a fail-over a finished attempt may be pending again,
// and a resolver or an operator has to settle it.
//
// Expiries follow the clock of the Redis server. If the clock goes back, nothing is lost
// and nothing runs. Redis remembers keys for longer, and an expired result may be replayed
// again while it is still there. If the clock jumps ahead by more than a minute, Redis may
// have forgotten keys too early. The store notices that and treats it as a loss: Begin fails
// with driver.ErrStoreLost until an operator has called [Store.AcceptLoss], also when the clock
// is right again. [WithClockChanges] reports both. Not every jump can be noticed, see
// docs/guarantees.md. Pending and unknown records do not expire. Let the servers' clocks be
// slewed, not stepped.
//
// Retired lock domains are lost with their server. A pending record under
// such a domain is in progress until the domain is retired again.
//
// # Layout
//
// Keys, with the prefix "idem" and 64 shards. The braces keep a shard in one slot of a
// cluster.
//
//	idem:{2a}:<key ID>        a record, as a packed string
//	idem:{2a}:<key ID>:body   its response, if that is over 1 KiB
//	idem:{2a}:open            sorted set of open records, by start time in ms
//	idem:{2a}:incarnation     UUID; after an accepted loss also the UUID before it; "jumped:" in front
//	                          of it if the clock jumped ahead
//	idem:{2a}:clock           what the shard knows of its server's clock, see lua/clock.lua
//	idem:{2a}:canary          expires after ten minutes, earlier than what a jump would end
//	idem:{2a}:none            never there for longer than a script runs
//	idem:{2a}:decisions       list of people's decisions, newest first, at most 1,000
//	idem:fences               hash of the highest fence of each lock domain that can go back
//	idem:retired              hash of dead lock domains and the decisions about them
//	idem:sealed               since when services encrypt stored responses
//
// A pending or unknown record has no time to live. A completed record expires with its
// key, and its response with the result.
//
// Package internal/loss tells the story of lost records. The scripts in the folder lua
// have the rest of the protocol.
package redisstore
