// Package redisstore keeps idempotency records in Redis 6.2 or later: one server,
// one behind Sentinel, or a cluster.
//
// # What is guaranteed
//
// Every change is one Lua script: atomic, by the server's clock, and without
// effect when it is sent twice. Reads come from the primary. Keys and tokens
// are stored nowhere, only their hashes.
//
// A Redis that lost its records is noticed, shard by shard, and Begin and Issue
// are refused with idem.ErrStoreLost until an operator has called
// [Store.AcceptLoss]: each shard holds a UUID, its incarnation, which every
// Begin carries and compares. In a cluster the shards of a primary that lost
// nothing go on. With [WithWitness] a copy is kept outside of Redis, which makes
// the loss known to processes that start after it. Without a witness each
// process compares with what it saw when it started. A store in use asks its
// witness every two seconds whether its Redis is still the one that has to be,
// and where it is not, refuses too: an instance with another address is not
// served beside it for longer.
//
// With [WithLossAcceptance] the store accepts by itself that shards hold no
// incarnation. It is only for where every instance has left durable markers for
// longer than clients repeat a request: what was completed by instances without
// markers, or before, runs again. A wrong address looks like a loss.
//
// With [WithReplicas] a Begin succeeds only once replicas have acknowledged the
// pending record: whichever of them is promoted has it. One that too few
// acknowledged is refused, and nothing runs.
//
// A key whose result has expired is remembered until its KeyTTL, over restarts
// of a Redis with an append-only file too.
//
// # What is not
//
// A Redis that comes back with older data and the same incarnation cannot be
// told from one that lost nothing: a failover to a replica that lagged behind,
// an old snapshot, an append-only file whose tail was cut off. A pending record
// that was lost this way is gone without a trace, and its key begins again at
// attempt 1. Run with appendfsync always, or at least everysec, and
// [WithReplicas]. That does not help where a replica is promoted that had not
// acknowledged, as with more replicas than are waited for, nor where a replica
// that has acknowledged restarts empty. Settle does not wait for replicas: after
// a failover a finished attempt may be pending again, and a resolver or an
// operator has to settle it.
//
// Expiries follow the clock of the Redis server. One that goes back loses and
// starts nothing: keys are remembered for longer, and a result that has expired
// and is still there may be told again. One that jumps ahead past a KeyTTL makes
// Redis forget that key, and setting it back does not bring it back: the key
// begins again. Records that are pending or unknown do not expire. Let clocks of
// servers be slewed, not stepped.
//
// Retired lock domains are lost with the server that holds them. What was
// pending under one is in progress then, until it is retired again.
//
// # Layout
//
// Keys, with the prefix "idem" and 64 shards; the braces keep what belongs
// together in one slot of a cluster:
//
//	idem:{2a}:<key ID>        a record, as a packed string
//	idem:{2a}:<key ID>:body   its response, where that is over 1 KiB
//	idem:{2a}:open            sorted set of open records, by start time in ms
//	idem:{2a}:incarnation     UUID; after an accepted loss, and a slash, that of
//	                          the incarnation that was lost
//	idem:{2a}:decisions       list of what people decided, newest first, at most
//	                          1,000; packed, see decisions.go
//	idem:retired              hash: lock domains that are dead, and who said so
//	idem:sealed               since when services encrypt stored responses
//
// A record that is pending or unknown has no time to live. A completed one goes
// when its key may be forgotten, and its response when the result expires.
package redisstore
