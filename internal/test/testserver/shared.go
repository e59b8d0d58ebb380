package testserver

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"os"
	"strings"
	"sync"
	"syscall"
	"testing"
)

// Environment variables with the names of running servers for the shared tests.
const (
	EnvZooKeeper = "IDEMKEEPER_TEST_ZOOKEEPER" // host:port,host:port
	EnvRedis     = "IDEMKEEPER_TEST_REDIS"     // redis://host:port/0
	EnvPostgres  = "IDEMKEEPER_TEST_POSTGRES"  // postgres://user@host:port/database
	EnvMySQL     = "IDEMKEEPER_TEST_MYSQL"     // mysql://user:password@host:port/, of MySQL 8 or later
	EnvMariaDB   = "IDEMKEEPER_TEST_MARIADB"   // mysql://user:password@host:port/
)

// shared holds the servers of this test binary. A failed start is
// remembered, and every other test then fails at once.
var shared struct {
	mu      sync.Mutex
	running bool // between begin and end of Main
	dir     string
	stop    []func()
	zk      sharedServer[[]string]
	zkOpts  []ZooKeeperOption
	redis   sharedServer[string]

	postgres  sharedServer[string]
	pgbouncer sharedServer[*PgBouncer]
	mariadb   sharedServer[string]
	mysql     sharedServer[string]
	sample    sharedServer[string] // its file
}

type sharedServer[T any] struct {
	tried bool
	value T
	err   error
}

// Main runs the tests and then stops the shared servers. TestMain passes its
// result to os.Exit. The default logger writes nothing meanwhile, because the faults that tests make on
// purpose would hide why one has failed.
func Main(m *testing.M) int {
	slog.SetDefault(slog.New(slog.DiscardHandler))
	shared.mu.Lock()
	shared.running = true
	shared.mu.Unlock()
	defer endShared()
	return m.Run()
}

// M makes Main fit where a Run method is wanted:
// goleak.VerifyTestMain(testserver.M{M: m}).
type M struct{ *testing.M }

// Run is Main.
func (m M) Run() int { return Main(m.M) }

func endShared() {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.running = false
	for _, stop := range shared.stop {
		stop()
	}
	shared.stop = nil
	if shared.dir != "" {
		os.RemoveAll(shared.dir)
	}
}

// ShareZooKeeperWith sets the options of the shared ZooKeeper, if one is started. Call
// it in TestMain, before Main.
func ShareZooKeeperWith(opts ...ZooKeeperOption) {
	shared.mu.Lock()
	defer shared.mu.Unlock()
	shared.zkOpts = opts
}

// SharedZooKeeper returns the hosts of the test binary's ZooKeeper. They are named
// by IDEMKEEPER_TEST_ZOOKEEPER, or a single server is started at the first
// call with a tick of 500 ms. Keep to a path of your own, see [Chroot].
func SharedZooKeeper(tb testing.TB) []string {
	tb.Helper()
	return share(tb, &shared.zk, EnvZooKeeper, func(hosts string) ([]string, error) {
		if hosts != "" {
			list := strings.Split(hosts, ",")
			return list, anyReachable(list)
		}
		z, held, err := launchZooKeeper(shared.dir, newZKConfig(shared.zkOpts))
		if err != nil {
			return nil, err
		}
		stopLater(z.instance, held.release)
		return z.Hosts(), nil
	})
}

// SharedRedis returns the URL of the test binary's Redis. It is named by
// IDEMKEEPER_TEST_REDIS, or a server is started at the first call. Keep to
// keys of your own (see [KeyPrefix]), and never flush.
func SharedRedis(tb testing.TB) string {
	tb.Helper()
	return share(tb, &shared.redis, EnvRedis, func(named string) (string, error) {
		if named != "" {
			u, err := url.Parse(named)
			if err != nil {
				return "", err
			}
			return named, anyReachable([]string{u.Host})
		}
		r, held, err := launchRedis(shared.dir, redisConfig{})
		if err != nil {
			return "", err
		}
		stopLater(r.instance, held.release)
		return r.URL(), nil
	})
}

func share[T any](tb testing.TB, s *sharedServer[T], env string, start func(named string) (T, error)) T {
	tb.Helper()
	needsServer(tb)
	shared.mu.Lock()
	defer shared.mu.Unlock()
	if !shared.running {
		tb.Fatalf("testserver: a shared server needs TestMain to call os.Exit(testserver.Main(m))")
	}
	if !s.tried {
		s.tried = true
		if shared.dir == "" {
			shared.dir, s.err = os.MkdirTemp("", "idemkeeper-test-")
		}
		if s.err == nil {
			s.value, s.err = start(os.Getenv(env))
		}
	}
	if s.err != nil {
		tb.Fatalf("%v\n(%s, or name running servers with %s=host:port,…, %s=redis://host:port/0, %s=postgres://user@host:port/database and %s=mysql://user:password@host:port/)",
			s.err, installHint, EnvZooKeeper, EnvRedis, EnvPostgres, EnvMariaDB)
	}
	return s.value
}

// stopLater ends a shared server after the tests, and then calls after. A server that has ended by
// itself says why.
func stopLater(i *instance, after func()) {
	shared.stop = append(shared.stop, func() {
		if p := i.current(); p != nil && !p.running() {
			fmt.Fprintf(os.Stderr, "testserver: %s has ended by itself. Its last lines:\n%s\n", i.prog.name, logTail(i.prog.log, 20))
		}
		if err := i.end(syscall.SIGKILL); err != nil {
			fmt.Fprintln(os.Stderr, err)
		}
		after()
	})
}

// anyReachable waits until one of the named hosts accepts a connection.
func anyReachable(hosts []string) error {
	return poll(StartTimeout/2, nil, func() error {
		var all error
		for _, h := range hosts {
			conn, err := net.DialTimeout("tcp", h, askTimeout)
			if err == nil {
				return conn.Close()
			}
			all = errors.Join(all, err)
		}
		return all
	})
}

// Chroot returns an unused path of one level, "/idemkeeper-test-…".
// The znode is neither created nor, on a server named by the environment, removed.
func Chroot(testing.TB) string { return "/idemkeeper-test-" + rand.Text()[:16] }

// KeyPrefix returns an unused prefix for Redis keys,
// "idemkeeper-test:…:".
func KeyPrefix(testing.TB) string { return "idemkeeper-test:" + rand.Text()[:16] + ":" }
