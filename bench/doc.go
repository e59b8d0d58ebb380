// Package bench measures Idemkeeper beside its peers, in one run on one machine.
// It is a module of its own, so that the peers never become dependencies of the
// library.
//
//	make bench                                       # everything, 5 rounds
//	make bench BENCH=GRPC ROUNDS=15 BENCHTIME=300ms  # a part, taking turns more often
//	make bench BENCHTIME=1x ROUNDS=1                 # does it still run?
//
// # Adding a comparison
//
// A case is a sub-benchmark in a file of this package, such as GRPC/tcp/fresh
// in grpc_test.go. A comparison is a row of the table in
// cmd/compare/comparisons.go with the names of its cases. A peer in a new module
// needs a line in docs/dependencies.md.
//
// # How it is measured
//
// The test binary is built once and run round by round. The cases of a comparison
// take turns, and a busy machine slows all of them down. The figure of a case is its
// median over the rounds. Each case checks how often its handler ran, so it never
// measures errors, or replays by mistake.
//
// A difference of some microseconds for each call is measured in processor time
// (cpu-ns/op), with one processor for client and server. On a shared machine the
// elapsed time varies by more than that. Some machines change their speed by more
// than that too. There, calls with and without the middleware take turns within a
// round (in-turns), and the value comes from the third of the rounds with the fastest
// bare calls. The report prints the range of all rounds beside it. Cases with servers
// are measured in elapsed time. A busy machine distorts it, so look at the spread.
//
// # What is compared
//
// A peer does the same job, with the settings of its documentation. In doubt the
// settings favour the peer. Each file says what its peer does and does not do.
//
//   - GRPC: a unary call, bare and through the interceptor, on memory lock and
//     store. The bare call carries the same metadata. The comparisons use bufconn, a
//     pipe in memory, and TCP, the transport of services. Over TCP all work outside
//     the kernel takes longer, because the kernel uses the same caches.
//   - HTTP: the same for Gin, and for Fiber with its own idempotency middleware.
//   - Lock: a ZooKeeper lock without contention, taken and released, beside the
//     recipe of the ZooKeeper client and Apache Curator's.
//   - Mutex: 64 waiters of 4 clients on one fair lock, beside the same two.
//   - HandOver: one hand-over of that lock with 10, 100 and 1,000 waiters.
//   - Joined: a payment of three statements in a joined transaction of PostgreSQL, beside the
//     same payment alone, at 16 connections. A replay beside one read by primary key.
//   - Execution: a whole execution of a fresh key across instances, beside the
//     usual code written by hand.
//
// Curator is a Java program (see package curator). It warms up like the others, runs against the same server in
// the same round, and measures the time itself.
//
// The servers are those of the tests, or the servers named in the environment (see
// package testserver). ZooKeeper runs as its own script would run it in production
// (testserver.AsInProduction). It waits for its disk before it acknowledges a write,
// has a heap of 1000 MB, and compiles its code in full. It has served some 25,000
// locks before the first peer's turn, because each lock makes it faster and the last
// peer would win. Redis writes nothing to disk.
package bench
