// Package loss notices that a Redis has lost its records, and lets a store accept
// that.
//
// # The incarnation
//
// Each shard of the store holds a UUID under a key of its own, its incarnation. The
// first process that uses a Redis creates it. A Redis that loses its records loses
// the incarnation with them, so a shard without the expected incarnation has lost
// records. Every Begin carries the expected incarnation, and the script that writes
// the record compares it. There is no moment between the check and the write.
//
// The expected incarnations are kept in three places:
//
//   - Redis holds the incarnations that are there.
//   - The [Witness] holds the expected ones. It is a small document outside of this
//     Redis, such as a znode.
//   - Each process remembers the expected ones. Without a witness it takes them from
//     Redis when it starts, so it cannot notice an earlier loss.
//
// # How a loss is noticed
//
// [Guard.Start] compares all shards when the process starts, and [Guard.Lost] does so
// for a health check. [Guard.Do] runs one call and learns from its answer that the
// shard has another incarnation. The call then fails with [idem.ErrStoreLost].
//
// A Redis that lost nothing can still be the wrong one: a second instance was started
// with another address, and the witness now names that server. [Guard.Reread] finds
// that out. It asks the witness every two seconds while the store is in use.
//
// # Who accepts a loss
//
// After a loss keys could run again, so an operator decides, and [Guard.Accept] does
// it. It gives new incarnations to all shards that lack the expected one, and writes
// them to the witness. Other processes notice the new incarnation in Redis, read the
// witness and go on.
//
// With [Config].Accepted the guard accepts losses by itself. It then accepts empty
// shards only. If a single shard holds an incarnation that was not made for this
// store, the address is probably wrong, and the guard leaves the decision to an
// operator.
//
// # Lineage
//
// An incarnation that was made to accept a loss names its predecessor:
//
//	3b8e…            the first
//	91f0…/3b8e…      made after the loss of 3b8e…
//
// A process that expects 3b8e… and finds 91f0…/3b8e… knows that an acceptance has
// begun. It can complete the acceptance if the other process died before it wrote the
// witness. Any other unknown incarnation is foreign: it belongs to another store, or
// to an earlier state of this one.
//
// # Races
//
// Two processes may accept the same loss at once. Both create incarnations with SETNX,
// so each shard has one winner and both processes read the same set back. The save of
// the witness compares its version, so one process succeeds. The other process reads
// the winner's document, removes the incarnations that it created in vain, and starts
// over. A shard that is wiped again meanwhile gets another incarnation.
//
// The operator's Accept replaces foreign incarnations too. Otherwise an acceptance of
// the earlier state could follow them and count as rightful again. Without a witness
// it adopts them, because it has no way to tell the other processes of new ones.
package loss
