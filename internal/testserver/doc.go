// Package testserver starts the real ZooKeeper and Redis servers that
// Idemkeeper's tests talk to, and breaks them on request.
//
// # What is guaranteed
//
//   - Loopback only: every server and proxy listens on 127.0.0.1, on a port
//     reserved against the other test binaries of the same machine.
//   - A start is bounded: a Start function returns a server that answers its
//     own protocol, or fails the test within [StartTimeout] and shows the end of
//     the server's log. A missing binary fails the test and names the package
//     to install; nothing is ever skipped.
//   - Nothing outlives the test: servers are stopped by process ID in the
//     test's clean-up and waited for. Should the test binary crash, or be killed
//     by its time-out, the kernel kills them (on Linux).
//   - No goroutine is left behind after the clean-up, so leak checks can run.
//
// # Own servers and shared servers
//
// A test that injects faults starts its own: [StartZooKeeper], [StartEnsemble],
// [StartRedis], [StartRedisCluster], [StartSentinel]. They can be paused,
// killed and restarted on the same ports and data directory.
//
// A test that only needs a healthy server shares one per test binary:
// [SharedZooKeeper] and [SharedRedis] start it at the first call and give
// out its address only, since a fault would hit the other tests. [Chroot] and
// [KeyPrefix] keep tests out of each other's data. The binary needs
//
//	func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }
//
// or, with a leak check, goleak.VerifyTestMain(testserver.M{M: m}). Servers that
// already run are used instead when the environment names them:
//
//	IDEMKEEPER_TEST_ZOOKEEPER=host:port,host:port
//	IDEMKEEPER_TEST_REDIS=redis://host:port/0
//	IDEMKEEPER_TEST_POSTGRES=postgres://user@host:port/database
//
// # Faults on the way
//
// A [Proxy] stands between a client and one server. It cuts, refuses, freezes
// and swallows, and it knows where requests and replies begin and end, so that
// a test can say "lose the reply of the next multi": applied, but the client
// cannot know.
package testserver
