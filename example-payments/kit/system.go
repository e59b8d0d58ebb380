package kit

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

// SessionTimeout and tick are those of the instances and of the ZooKeeper
// server. The one has to leave some trust in a lease behind the margin of
// session/10 + tick + 5 %, and bounds how long a test waits for the lock of a
// dead holder.
const (
	SessionTimeout = 5 * time.Second
	Tick           = 500 * time.Millisecond
)

// System is what the instances of one test share: a ZooKeeper chroot, a Redis
// and a ledger.
type System struct {
	T      testing.TB
	ZK     []string // hosts
	Chroot string
	Redis  *testserver.Redis // nil for the commands that need ZooKeeper only, and if store tells
	Store  []string          // idemctl's environment for another token store
	Ledger string            // file

	// session is idemctl's time-out. It outlasts a pause of the process on a busy
	// machine. Tests that wait for the end of a session have a short one.
	Session time.Duration
}

// NewSystem has a Redis of its own and a chroot in the shared ZooKeeper.
func NewSystem(t testing.TB) *System {
	t.Helper()
	return NewSystemOn(t, testserver.SharedZooKeeper(t))
}

// NewSystemOn has a Redis of its own and a chroot in the ZooKeeper at hosts.
func NewSystemOn(t testing.TB, hosts []string) *System {
	t.Helper()
	s := ZooKeeperOnly(t, hosts)
	s.Redis, s.Ledger = testserver.StartRedis(t), filepath.Join(t.TempDir(), "ledger.db")
	return s
}

// ZooKeeperOnly is a system for idemctl's locks, elections and queues.
func ZooKeeperOnly(t testing.TB, hosts []string) *System {
	return &System{T: t, ZK: hosts, Chroot: testserver.Chroot(t), Session: 30 * time.Second}
}

// WithShortSession is the same system, with sessions that end soon.
func (s *System) WithShortSession() *System {
	short := *s
	short.Session = SessionTimeout
	return &short
}

// Through is the same system behind a proxy of its ZooKeeper.
func (s *System) Through(p *testserver.Proxy) *System {
	proxied := *s
	proxied.ZK = []string{p.Addr()}
	return &proxied
}

// Instance is a running process of the sample payment service.
type Instance struct {
	*Process
	Addr, RPC string // of the HTTP and the gRPC server
}

// ReadyLine is what the sample prints when it serves.
var ReadyLine = regexp.MustCompile(`^ready http=(\S+) grpc=(\S+)$`)

// StartInstance runs the sample with these flags and returns once it is ready.
func StartInstance(t testing.TB, name string, flags ...string) *Instance {
	t.Helper()
	return StartBuild(t, Binary(t, "./example-payments"), name, flags...)
}

// StartBuild is StartInstance for a build of the sample, by its file.
func StartBuild(t testing.TB, file, name string, flags ...string) *Instance {
	t.Helper()
	in := spawn(t, file, name, flags)
	line := in.WaitOut(t, "ready ")
	m := ReadyLine.FindStringSubmatch(line)
	if m == nil {
		t.Fatalf("%s printed %q, want %v", name, line, ReadyLine)
	}
	in.Addr, in.RPC = m[1], m[2]
	return in
}

// SpawnInstance starts the sample and waits for nothing.
func SpawnInstance(t testing.TB, name string, flags ...string) *Instance {
	t.Helper()
	return spawn(t, Binary(t, "./example-payments"), name, flags)
}

func spawn(t testing.TB, file, name string, flags []string) *Instance {
	t.Helper()
	args := append([]string{"--http-addr", "127.0.0.1:0", "--grpc-addr", "127.0.0.1:0", "--log-level", "debug"}, flags...)
	return &Instance{Process: StartProcess(t, name, exec.Command(file, args...))}
}

// launch is how an instance is started.
type launch struct {
	zk, redis string // addresses
	flags     []string
}

// LaunchOption changes how an instance is started.
type LaunchOption func(*launch)

// WithFlags adds command line flags.
func WithFlags(f ...string) LaunchOption {
	return func(l *launch) { l.flags = append(l.flags, f...) }
}

// WithLatency opens a window of half its length before the ledger write, and one
// after it.
func WithLatency(d time.Duration) LaunchOption { return WithFlags("--processor-latency", d.String()) }

// ThroughZooKeeper puts a proxy between the instance and ZooKeeper.
func ThroughZooKeeper(p *testserver.Proxy) LaunchOption { return func(l *launch) { l.zk = p.Addr() } }

// ThroughRedis puts a proxy between the instance and Redis.
func ThroughRedis(p *testserver.Proxy) LaunchOption { return func(l *launch) { l.redis = p.Addr() } }

// Flags of an instance of this system.
func (s *System) Flags(opts ...LaunchOption) []string {
	l := launch{zk: strings.Join(s.ZK, ","), redis: s.Redis.Addr()}
	for _, o := range opts {
		o(&l)
	}
	return append([]string{
		"--zookeeper", l.zk + s.Chroot,
		"--redis", "redis://" + l.redis + "/0",
		"--database", "sqlite:" + s.Ledger,
		"--session-timeout", SessionTimeout.String(), "--zookeeper-tick", Tick.String(),
	}, l.flags...)
}

// Start starts an instance of this system.
func (s *System) Start(name string, opts ...LaunchOption) *Instance {
	s.T.Helper()
	return StartInstance(s.T, name, s.Flags(opts...)...)
}

// ZooKeeperProxy starts a proxy in front of the first ZooKeeper.
func (s *System) ZooKeeperProxy() *testserver.Proxy {
	s.T.Helper()
	return testserver.StartZooKeeperProxy(s.T, s.ZK[0])
}

// RedisProxy starts a proxy in front of Redis.
func (s *System) RedisProxy() *testserver.Proxy {
	s.T.Helper()
	return testserver.StartRedisProxy(s.T, s.Redis.Addr())
}

// KeyID of a key of the merchant whose token is "demo".
func KeyID(key string) driver.KeyID { return idem.NewKeyID("merchant_demo", idem.Key(key)) }

// LogOp is how the log names what runs under a key.
func LogOp(key string) string { return "op=" + KeyID(key).OperationID() }

// LockNode is the name of a key's lock znode, and part of its path.
func LockNode(key string) string { return KeyID(key).String()[3:] }

// ZooKeeper opens a session of the test's own.
func (s *System) ZooKeeper() *zk.Conn {
	s.T.Helper()
	conn, _, err := zk.Connect(s.ZK, 20*time.Second, zk.WithLogger(silent{}))
	if err != nil {
		s.T.Fatal(err)
	}
	s.T.Cleanup(conn.Close)
	return conn
}

type silent struct{}

// Printf implements zk.Logger.
func (silent) Printf(string, ...any) {}

// Locks lists the lock znodes that are there.
func (s *System) Locks(conn *zk.Conn) []string {
	s.T.Helper()
	var all []string
	for _, shard := range s.Children(conn, s.Chroot+"/lock") {
		all = append(all, s.Children(conn, s.Chroot+"/lock/"+shard)...)
	}
	return all
}

// Children lists the children of a znode, none if it is not there.
func (s *System) Children(conn *zk.Conn, path string) []string {
	s.T.Helper()
	names, _, err := conn.Children(path)
	if err != nil && !errors.Is(err, zk.ErrNoNode) {
		s.T.Fatalf("Children(%q) = %v", path, err)
	}
	return names
}

// WaitLock waits until the lock of a key is there, or is not.
func (s *System) WaitLock(conn *zk.Conn, key string, want bool) {
	s.T.Helper()
	Eventually(s.T, "lock of "+key, func() error {
		if s.LockExists(conn, key) != want {
			return ErrNotYet
		}
		return nil
	})
}

// LockPath is where the lock of a key is, or the marker above it.
func (s *System) LockPath(key string) string {
	hex := KeyID(key).String()
	return s.Chroot + "/lock/" + hex[:3] + "/" + hex[3:]
}

// LockExists asks whether the lock of a key is there: at its path, or below the
// marker that is there.
func (s *System) LockExists(conn *zk.Conn, key string) bool {
	s.T.Helper()
	found, stat, err := conn.Exists(s.LockPath(key))
	if err == nil && found && stat.EphemeralOwner == 0 {
		found, _, err = conn.Exists(s.LockPath(key) + "/lock")
	}
	if err != nil {
		s.T.Errorf("Exists(lock of %s) = %v", key, err)
	}
	return found
}

// Idemctl is a command line on this system.
func (s *System) Idemctl(args ...string) *exec.Cmd {
	s.T.Helper()
	cmd := exec.Command(Binary(s.T, "./cmd/idemctl"), args...)
	cmd.Env = append(os.Environ(),
		"IDEMCTL_ZOOKEEPER="+strings.Join(s.ZK, ",")+s.Chroot, // empty for none
		"IDEMCTL_SESSION_TIMEOUT="+s.Session.String(), "IDEMCTL_ZOOKEEPER_TICK="+Tick.String(),
		"GORACE=atexit_sleep_ms=0") // otherwise each run ends a second late
	if s.Redis != nil {
		cmd.Env = append(cmd.Env, "IDEMCTL_REDIS=redis://"+s.Redis.Addr()+"/0")
	}
	cmd.Env = append(cmd.Env, s.Store...)
	return cmd
}

// StartIdemctl starts a command line and waits for nothing.
func (s *System) StartIdemctl(args ...string) *Process {
	s.T.Helper()
	return StartProcess(s.T, "idemctl "+strings.Join(args, " "), s.Idemctl(args...))
}

// RunIdemctl runs a command line to its end.
func (s *System) RunIdemctl(args ...string) Result {
	s.T.Helper()
	return s.StartIdemctl(args...).WaitExit(s.T)
}

// OutputOf runs a command line to its end.
func (s *System) OutputOf(args ...string) (stdout string, code int) {
	s.T.Helper()
	got := s.RunIdemctl(args...)
	return got.Stdout, got.Code
}
