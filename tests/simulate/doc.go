// Package simulate runs whole systems under faults, in one process and on a clock of its
// own, and checks afterwards what must never happen.
//
// A run has two or three service processes, some clients, a ZooKeeper ensemble (package
// simzk), a token store (package simstore) and a ledger, on one network (package simnet).
// The processes run the real engine, the real session layer with its client library, the
// real recipes and the real sweeper. Nothing in them is changed for the simulation. They
// get a dialler, a lease clock and a Store from it, as any test may give them. Everything
// runs in a bubble of testing/synctest, where a minute passes in milliseconds.
//
// In a third of the plans the processes have no lock in ZooKeeper. The store has the locks (package simstore), and one call takes
// lock and record of a key. A fail-over of the store then loses both, and a clock of the store that jumps ahead ends locks early.
//
// # One seed
//
// A [Plan] comes from a seed alone. It says how the processes, the clients and the
// ledger are set up, how fast each clock runs, and which faults happen when. A fault
// comes at a time, or at a step of a process. A step is a message that the process sends or
// receives outside of ZooKeeper. Each plan has a theme, such as clocks at their limits or
// servers that show the past. The seed also drives the delay of each message, and which calls
// are lost, late or repeated. Each connection and each caller has a stream of random numbers
// of its own, so that a change in one place leaves the others as they are.
//
// What the seed does not drive is the order in which the Go scheduler runs goroutines that
// are ready at the same moment, the choice of a select with several ready cases, and
// math/rand/v2 in the code under test, which it uses to spread retries. So a second run of
// a seed has the same set-up, the same clocks, the same faults at the same times and
// steps, and the same delays of the n-th message of a connection. Goroutines follow it as
// far as these let them. The test runs a failing plan again, and says how often it fails.
//
// # Pauses and clocks
//
// A goroutine cannot be stopped from outside. So a paused process is one whose messages
// leave only when it wakes up, and that reads nothing until then. Its lease clock stands
// still, and jumps when it wakes up. What its goroutines compute meanwhile is what they
// could have computed right before the pause. Timers are the exception. They fire during
// the pause, where a paused process would see them fire right after it.
//
// A dead process reaches nothing any more. Its goroutines may compute, and then end.
//
// Each lease clock, and the clock by which the ensemble expires sessions, runs up to 2.4 %
// too fast or too slow. Timers run at the right speed.
//
// # What is checked
//
//   - There is at most one effect per key at a ledger that checks fences. Without fences
//     that holds for runs without pauses.
//   - An answer that a client got is the answer of every repeat, and the ledger has its effect.
//   - Fences grow along the holders of each lock, and in each record.
//   - No two leases of one lock are believed in by processes that run.
//   - A completed record never changes, and a released attempt is never completed later.
//   - An element of the queue that was taken in comes out, and is removed once.
//   - A combined call without an answer is undone, and one that comes too late begins nothing.
//   - When the faults have stopped, every key is settled, and no lock is left.
//   - When the processes have stopped, no goroutine, session, watch or container is left.
//
// Where lock and record are in the store, a fail-over may lose both, and such a key may run again, as package lock/redis
// says. Leases are then believed in beside a later one for their time to live at most, and so are those of before a clock that
// jumped ahead. A ledger that checks fences still has at most one effect after a jump, because the records are there.
//
// # Reading order
//
// plan.go draws a run. world.go runs it. process.go is a service process, lease.go looks
// over its leases, ledger.go is the resource, load.go the clients, recipes.go the users of
// recipes, faults.go what breaks, check.go the judge. combined.go has what differs with
// combined calls. shrink.go makes a failing plan smaller.
package simulate
