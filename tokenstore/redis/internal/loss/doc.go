// Package loss notices when a Redis has lost its records, and lets a store accept the
// loss.
//
// # The incarnation
//
// Each shard of the store holds a UUID under a key of its own, its incarnation. The
// first process that uses a Redis creates it. A Redis that loses its records loses
// the incarnation with them, so a shard without the expected incarnation has lost
// records. Every Begin carries the expected incarnation, and its script compares it
// before it writes the record. There is no moment between the check and the write.
//
// The expected incarnations are kept in three places:
//
//   - Redis holds the actual incarnations.
//   - The [Witness] holds the expected ones. It is a small document outside of this
//     Redis, such as a znode.
//   - Each process remembers the expected ones. Without a witness it takes them from
//     Redis when it starts, so it cannot notice an earlier loss.
//
// # How a loss is noticed
//
// [Guard.Start] compares all shards when the process starts, and [Guard.Lost] does so
// for a health check. [Guard.Do] runs one call. If the shard answers with another
// incarnation, the call fails with [driver.ErrStoreLost].
//
// A Redis without a loss can still be the wrong one. A second instance was started with
// another address, and the witness now names its server. [Guard.Reread] notices this. It
// asks the witness every two seconds while the store is in use.
//
// # Who accepts a loss
//
// After a loss keys could run again, so an operator decides, and [Guard.Accept] does
// it. It gives new incarnations to all shards without the expected one, and writes them
// to the witness. Other processes read the witness at most a quarter of a second after
// they notice the loss, and go on.
//
// With [Config].Accepted the guard accepts losses by itself. It then accepts empty
// shards only. If a single shard holds another store's incarnation, the address is
// probably wrong, and the guard leaves the decision to an operator.
//
// # Lineage
//
// An incarnation made for an acceptance names its predecessor:
//
//	3b8e…            the first
//	91f0…/3b8e…      made after the loss of 3b8e…
//
// If a process expects 3b8e… and finds 91f0…/3b8e…, an acceptance has begun. The process
// can complete it if the other process died before it wrote the witness. Any other unknown
// incarnation is foreign. It belongs to another store, or to an earlier state of this one.
//
// # Races
//
// Two processes may accept the same loss at once. Both create incarnations with SETNX,
// so each shard has one winner and both processes read the same set back. The save of
// the witness compares its version, so one process succeeds. The other process starts
// over with the winner's document.
//
// If a shard is wiped again between the two, the loser may have created 47aa…/3b8e…
// there while the witness expects 91f0…/3b8e…. Both follow the same loss. 47aa… was
// overtaken: it was never saved, so no process expected it and no record was written
// under it. Such a shard counts as empty, and gets a successor of 91f0….
//
// All of this relies on one witness with one history. If the witness is restored from a
// backup, or Redis and witness are copied together to another place and both sides then
// accept the same loss, a shard with records may look overtaken. An operator who restores a
// witness therefore starts without WithLossAcceptance and looks first.
//
// The operator's Accept replaces foreign incarnations too. Otherwise an acceptance of
// the earlier state could follow them and count as rightful again. Without a witness
// it adopts them, because it has no way to tell the other processes of new ones.
package loss
