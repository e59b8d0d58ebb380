package tests

import (
	"bytes"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/internal/testserver"
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
	redis  *testserver.Redis
	ledger string // file
}

// newSystem has a Redis of its own and a chroot in the shared ZooKeeper.
func newSystem(t testing.TB) *system {
	t.Helper()
	return newSystemOn(t, testserver.SharedZooKeeper(t))
}

func newSystemOn(t testing.TB, hosts []string) *system {
	t.Helper()
	return &system{t: t, zk: hosts, chroot: testserver.Chroot(t), redis: testserver.StartRedis(t),
		ledger: filepath.Join(t.TempDir(), "ledger.db")}
}

// launch is how an instance is started.
type launch struct {
	zk, redis string // addresses
	flags     []string
}

type launchOption func(*launch)

// flags adds command line flags.
func flags(f ...string) launchOption {
	return func(l *launch) { l.flags = append(l.flags, f...) }
}

// latency opens a window of half its length before the ledger write, and one
// after it.
func latency(d time.Duration) launchOption { return flags("--processor-latency", d.String()) }

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
		"--session-timeout", sessionTimeout.String(), "--zookeeper-tick", tick.String(), "--parents-on-demand",
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
func keyID(key string) idem.KeyID { return idem.NewKeyID("merchant_demo", idem.Key(key)) }

// op is how the log names what runs under a key.
func op(key string) string { return "op=" + keyID(key).OperationID() }

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

// idemctl runs the operator's command line on this system and returns what it
// printed and its exit code.
func (s *system) idemctl(args ...string) (stdout string, code int) {
	s.t.Helper()
	cmd := exec.CommandContext(s.t.Context(), binary(s.t, "./cmd/idemctl"), append([]string{
		"--zookeeper", strings.Join(s.zk, ",") + s.chroot,
		"--redis", "redis://" + s.redis.Addr() + "/0",
	}, args...)...)
	cmd.SysProcAttr = childAttr()
	cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0") // else each run ends a second late
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	if exit := (*exec.ExitError)(nil); err != nil && !errors.As(err, &exit) {
		s.t.Fatalf("idemctl %q: %v", args, err)
	}
	if errs.Len() > 0 {
		s.t.Logf("idemctl %q: %s", args, errs.String())
	}
	return out.String(), cmd.ProcessState.ExitCode()
}
