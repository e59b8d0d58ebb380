package tests

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// sessionTimeout and tick are those of the instances and of the ZooKeeper
// server. The one has to leave some trust in a lease behind the margin of
// session/10 + tick + 5 %, and bounds how long a test waits for the lock of a
// dead holder.
const (
	sessionTimeout = 5 * time.Second
	tick           = 500 * time.Millisecond
)

// system is what the instances of one test share: a ZooKeeper chroot, a Redis
// and a ledger.
type system struct {
	t      testing.TB
	zk     []string // hosts
	chroot string
	redis  *testserver.Redis // nil for the commands that need ZooKeeper only, and if store tells
	store  []string          // idemctl's environment for another token store
	ledger string            // file

	// session is idemctl's time-out. It outlasts a pause of the process on a busy
	// machine. Tests that wait for the end of a session have a short one.
	session time.Duration
}

// newSystem has a Redis of its own and a chroot in the shared ZooKeeper.
func newSystem(t testing.TB) *system {
	t.Helper()
	return newSystemOn(t, testserver.SharedZooKeeper(t))
}

func newSystemOn(t testing.TB, hosts []string) *system {
	t.Helper()
	s := zooKeeperOnly(t, hosts)
	s.redis, s.ledger = testserver.StartRedis(t), filepath.Join(t.TempDir(), "ledger.db")
	return s
}

// zooKeeperOnly is a system for idemctl's locks, elections and queues.
func zooKeeperOnly(t testing.TB, hosts []string) *system {
	return &system{t: t, zk: hosts, chroot: testserver.Chroot(t), session: 30 * time.Second}
}

// withShortSession is the same system, with sessions that end soon.
func (s *system) withShortSession() *system {
	short := *s
	short.session = sessionTimeout
	return &short
}

// through is the same system behind a proxy of its ZooKeeper.
func (s *system) through(p *testserver.Proxy) *system {
	proxied := *s
	proxied.zk = []string{p.Addr()}
	return &proxied
}

// instance is a running process of the sample payment service.
type instance struct {
	*process
	addr, rpc string // of the HTTP and the gRPC server
}

var readyLine = regexp.MustCompile(`^ready http=(\S+) grpc=(\S+)$`)

// startInstance runs the sample with these flags and returns once it is ready.
func startInstance(t testing.TB, name string, flags ...string) *instance {
	t.Helper()
	in := spawnInstance(t, name, flags...)
	line := in.waitOut(t, "ready ")
	m := readyLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("%s printed %q, want %v", name, line, readyLine)
	}
	in.addr, in.rpc = m[1], m[2]
	return in
}

// spawnInstance starts the sample and waits for nothing.
func spawnInstance(t testing.TB, name string, flags ...string) *instance {
	t.Helper()
	args := append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0", "--log-level", "debug"}, flags...)
	return &instance{process: startProcess(t, name, exec.Command(binary(t, "./example-payments"), args...))}
}

// launch is how an instance is started.
type launch struct {
	zk, redis string // addresses
	flags     []string
}

type launchOption func(*launch)

// withFlags adds command line flags.
func withFlags(f ...string) launchOption {
	return func(l *launch) { l.flags = append(l.flags, f...) }
}

// withLatency opens a window of half its length before the ledger write, and one
// after it.
func withLatency(d time.Duration) launchOption { return withFlags("--processor-latency", d.String()) }

// throughZooKeeper and throughRedis put a proxy between.
func throughZooKeeper(p *testserver.Proxy) launchOption { return func(l *launch) { l.zk = p.Addr() } }
func throughRedis(p *testserver.Proxy) launchOption     { return func(l *launch) { l.redis = p.Addr() } }

// flags of an instance of this system.
func (s *system) flags(opts ...launchOption) []string {
	l := launch{zk: strings.Join(s.zk, ","), redis: s.redis.Addr()}
	for _, o := range opts {
		o(&l)
	}
	return append([]string{
		"--zookeeper", l.zk + s.chroot,
		"--redis", "redis://" + l.redis + "/0",
		"--database", "sqlite:" + s.ledger,
		"--session-timeout", sessionTimeout.String(), "--zookeeper-tick", tick.String(),
	}, l.flags...)
}

// start starts an instance of this system.
func (s *system) start(name string, opts ...launchOption) *instance {
	s.t.Helper()
	return startInstance(s.t, name, s.flags(opts...)...)
}

func (s *system) zooKeeperProxy() *testserver.Proxy {
	s.t.Helper()
	return testserver.StartZooKeeperProxy(s.t, s.zk[0])
}

func (s *system) redisProxy() *testserver.Proxy {
	s.t.Helper()
	return testserver.StartRedisProxy(s.t, s.redis.Addr())
}

// keyID of a key of the merchant whose token is "demo".
func keyID(key string) driver.KeyID { return idem.NewKeyID("merchant_demo", idem.Key(key)) }

// logOp is how the log names what runs under a key.
func logOp(key string) string { return "op=" + keyID(key).OperationID() }

// lockNode is the name of a key's lock znode, and part of its path.
func lockNode(key string) string { return keyID(key).String()[3:] }

// zooKeeper opens a session of the test's own.
func (s *system) zooKeeper() *zk.Conn {
	s.t.Helper()
	conn, _, err := zk.Connect(s.zk, 20*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(conn.Close)
	return conn
}

type silent struct{}

// Printf implements zk.Logger.
func (silent) Printf(string, ...any) {}

// locks lists the lock znodes that are there.
func (s *system) locks(conn *zk.Conn) []string {
	s.t.Helper()
	var all []string
	for _, shard := range s.children(conn, s.chroot+"/lock") {
		all = append(all, s.children(conn, s.chroot+"/lock/"+shard)...)
	}
	return all
}

func (s *system) children(conn *zk.Conn, path string) []string {
	s.t.Helper()
	names, _, err := conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		s.t.Fatalf("Children(%q) = %v", path, err)
	}
	return names
}

// waitLock waits until the lock of a key is there, or is not.
func (s *system) waitLock(conn *zk.Conn, key string, want bool) {
	s.t.Helper()
	eventually(s.t, "lock of "+key, func() error {
		if s.lockExists(conn, key) != want {
			return errNotYet
		}
		return nil
	})
}

// lockPath is where the lock of a key is, or the marker above it.
func (s *system) lockPath(key string) string {
	hex := keyID(key).String()
	return s.chroot + "/lock/" + hex[:3] + "/" + hex[3:]
}

// lockExists asks whether the lock of a key is there: at its path, or below the
// marker that is there.
func (s *system) lockExists(conn *zk.Conn, key string) bool {
	s.t.Helper()
	found, stat, err := conn.Exists(s.lockPath(key))
	if err == nil && found && stat.EphemeralOwner == 0 {
		found, _, err = conn.Exists(s.lockPath(key) + "/lock")
	}
	if err != nil {
		s.t.Errorf("Exists(lock of %s) = %v", key, err)
	}
	return found
}

// idemctl is a command line on this system.
func (s *system) idemctl(args ...string) *exec.Cmd {
	s.t.Helper()
	cmd := exec.Command(binary(s.t, "./cmd/idemctl"), args...)
	cmd.Env = append(os.Environ(),
		"IDEMCTL_ZOOKEEPER="+strings.Join(s.zk, ",")+s.chroot, // empty for none
		"IDEMCTL_SESSION_TIMEOUT="+s.session.String(), "IDEMCTL_ZOOKEEPER_TICK="+tick.String(),
		"GORACE=atexit_sleep_ms=0") // otherwise each run ends a second late
	if s.redis != nil {
		cmd.Env = append(cmd.Env, "IDEMCTL_REDIS=redis://"+s.redis.Addr()+"/0")
	}
	cmd.Env = append(cmd.Env, s.store...)
	return cmd
}

// startIdemctl starts a command line and waits for nothing.
func (s *system) startIdemctl(args ...string) *process {
	s.t.Helper()
	return startProcess(s.t, "idemctl "+strings.Join(args, " "), s.idemctl(args...))
}

// runIdemctl runs a command line to its end.
func (s *system) runIdemctl(args ...string) result {
	s.t.Helper()
	return s.startIdemctl(args...).waitExit(s.t)
}

// outputOf runs a command line to its end.
func (s *system) outputOf(args ...string) (stdout string, code int) {
	s.t.Helper()
	got := s.runIdemctl(args...)
	return got.stdout, got.code
}
