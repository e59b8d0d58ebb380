// Package testserver starts real ZooKeeper and Redis servers for
// Idemkeeper's tests, and breaks them on request.
//
// # Guarantees
//
//   - Every server and proxy listens on 127.0.0.1 only, on a port reserved against
//     the other test binaries of the same machine.
//   - A Start function returns a server that answers its own protocol, or fails the
//     test within [StartTimeout] and shows the end of the server's log. A missing
//     binary fails the test and names the package to install.
//   - Under "go test -short" a test that asks for a server is skipped with the
//     reason [LeftOut]. A full run never sets -short, and counts a skip as failed.
//   - The test's clean-up stops the servers by process ID and waits for them. If the
//     test binary crashes or is killed, the kernel kills them (on Linux).
//   - All goroutines have ended after the clean-up, so leak checks can run.
//
// # Own servers and shared servers
//
// A test with faults starts its own server with [StartZooKeeper], [StartEnsemble],
// [StartRedis], [StartRedisCluster], [StartSentinel]. They can be paused,
// killed and restarted on the same ports and data directory.
//
// A test with a healthy server shares one per test binary.
// [SharedZooKeeper] and [SharedRedis] start it at the first call. They return its
// address only, since a fault would hit the other tests. [Chroot] and
// [KeyPrefix] keep tests out of each other's data. The binary needs
//
//	func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }
//
// or, with a leak check, goleak.VerifyTestMain(testserver.M{M: m}). The environment can
// name running servers to use instead:
//
//	IDEMKEEPER_TEST_ZOOKEEPER=host:port,host:port
//	IDEMKEEPER_TEST_REDIS=redis://host:port/0
//	IDEMKEEPER_TEST_POSTGRES=postgres://user@host:port/database
//	IDEMKEEPER_TEST_MARIADB=mysql://user:password@host:port/
//	IDEMKEEPER_TEST_MYSQL=mysql://user:password@host:port/
//
// The last one names a MySQL. Tests on it are skipped as not run here without it. One more names the directory of a server
// of another release, as make matrix unpacks it. Tests start that one instead of the installed one, and may kill it:
//
//	IDEMKEEPER_TEST_ROOT=/path/.matrix/mysql-9.7
//
// [StartSample] starts the sample service of this repository, for tests in other modules.
//
// # Faults on the way
//
// A [Proxy] stands between a client and one server. It cuts, refuses, freezes
// and swallows. It knows where requests and replies begin and end, so a test can
// lose the reply of the next multi. The server has applied the multi then, and the
// client cannot know.
package testserver
