// Package bench measures Idemkeeper beside its peers, in one run on one machine.
// It is a module of its own, so that what it compares with never becomes a
// dependency of the library.
//
//	make bench                                       # everything, 5 rounds
//	make bench BENCH=GRPC ROUNDS=15 BENCHTIME=300ms  # a part, taking turns more often
//	make bench BENCHTIME=1x ROUNDS=1                 # does it still run?
//
// # Adding a comparison
//
// A case is a sub-benchmark in a file of this package, such as GRPC/tcp/fresh
// in grpc_test.go. A comparison is a row of the table in
// cmd/compare/comparisons.go that names the cases. Nothing else has to be told,
// except docs/dependencies.md where the peer is a new module.
//
// # How it is measured
//
// The test binary is built once and run round by round, so that the cases of a
// comparison take turns and a machine that gets busy slows down all of them.
// The figure of a case is its median over the rounds. Each case makes sure that
// its handler ran as often as it should, so that none measures errors, or replays
// by mistake.
//
// What adds some microseconds to a call is told in processor time (cpu-ns/op),
// with one processor for client and server: on a shared machine the time that
// passes varies by more than the difference sought. Where the machine changes its
// speed by more than that as well, calls with and without take turns within a round
// (in-turns), and the value is that of the third of the rounds in which the bare call
// was fastest; the rounds printed beside it are all. What waits for servers is
// told in time that passes, which a busy machine distorts; look at the spread.
//
// # What is compared
//
// Only what does the same job, with settings that the peer's documentation
// recommends or, in doubt, that favour the peer; each file says what the peer
// does and does not do.
//
//   - GRPC: a unary call, bare and through the interceptor, on memory lock and
//     store. The bare call carries the same metadata. The comparisons take bufconn,
//     a pipe in memory, and TCP, which services speak and over which all that is not
//     the kernel's takes longer: its caches are everybody's.
//   - HTTP: the same for Gin, and for Fiber with its own idempotency middleware.
//   - Lock: taking and releasing a ZooKeeper lock that nobody else wants, beside
//     the recipe that comes with the ZooKeeper client, and Apache Curator's.
//   - Mutex: 64 waiters from 4 clients that hand a fair lock on one path over,
//     beside the same two.
//   - HandOver: what a hand-over of that lock costs with 10, 100 and 1,000
//     waiters.
//   - Execution: a whole execution of a fresh key across instances, beside what
//     is usually written by hand.
//
// Curator is a Java program (see package curator). Where its Debian package,
// libcurator-recipes-java, is not installed, its comparisons are left out and said
// to be. It makes its pairs warmed up, as the others do, against the same server and
// in the same round, and takes the time itself.
//
// The servers are those of the tests, or the ones that the environment names
// (see package testserver), except that ZooKeeper runs as its own script would have
// it in production (testserver.AsInProduction): it waits for its disk before it
// acknowledges a write, has a heap of 1000 MB, and its code is compiled in full. It
// has served some 25,000 locks before the first peer's turn: every one of them makes
// it faster, and who comes last would win. Redis writes nothing to disk.
package bench
