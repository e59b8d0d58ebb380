// Package redis keeps idempotency records in Redis 6.2 or later: one server,
// one behind Sentinel, or a cluster.
//
// # What is guaranteed
//
// Every change is one Lua script: atomic, by the server's clock, and without
// effect when it is sent twice. Reads come from the primary. Keys and tokens
// are stored nowhere, only their hashes.
//
// A Redis that lost its records is noticed, and Begin and Issue are refused
// with idem.ErrStoreLost until an operator has called [Store.AcceptLoss]: each
// shard holds a UUID, its incarnation, which every Begin carries and compares.
// With [WithWitness] a copy is kept outside of Redis, which makes the loss
// known to processes that start after it. Without a witness each process
// compares with what it saw when it started.
//
// # What is not
//
// A Redis that comes back with older data and the same incarnation cannot be
// told from one that lost nothing: a failover to a replica that lagged behind,
// an old snapshot, an append-only file whose tail was cut off. Run with
// appendfsync always, or at least everysec, and with replicas that acknowledge.
//
// # Layout
//
// Keys, with the prefix "idem" and 64 shards; the braces keep what belongs
// together in one slot of a cluster:
//
//	idem:{2a}:<key ID>        a record, as a packed string
//	idem:{2a}:<key ID>:body   its response, where that is over 1 KiB
//	idem:{2a}:open            sorted set of open records, by start time in ms
//	idem:{2a}:incarnation     UUID
//	idem:retired              hash: lock domains that are dead, and who said so
//
// A record that is pending or unknown has no time to live. A completed one goes
// when its key may be forgotten, and its response when the result expires.
package redis
