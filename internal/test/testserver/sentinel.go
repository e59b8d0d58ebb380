package testserver

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
)

// SentinelMaster is the name under which the sentinels watch the primary.
const SentinelMaster = "mymaster"

// Sentinel is a primary, a replica, and sentinels. They promote the replica
// when the primary has not answered for three seconds. Replication is
// asynchronous, so a failover may lose a write acknowledged just before.
type Sentinel struct {
	primary, replica *Redis
	sentinels        []*Redis
}

// StartSentinel starts the servers with one sentinel, or with three and a quorum
// of two. It returns once the replica is in step and every sentinel knows all
// the others. The test's clean-up kills them. opts are for primary and replica.
func StartSentinel(tb testing.TB, sentinels int, opts ...RedisOption) *Sentinel {
	tb.Helper()
	needsServer(tb)
	if sentinels < 1 {
		tb.Fatalf("testserver: StartSentinel(%d): no sentinel", sentinels)
	}
	dir, cfg := tb.TempDir(), newRedisConfig(opts)
	s := &Sentinel{}
	held, err := retryOnBind(2+sentinels, func(nums []int) error {
		*s = Sentinel{}
		if err := s.launch(dir, cfg, nums); err != nil {
			return errors.Join(err, s.killAll())
		}
		return nil
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	for _, r := range s.all() {
		r.own(tb)
	}
	return s
}

func (s *Sentinel) launch(dir string, cfg redisConfig, nums []int) (err error) {
	const noDelay = "--repl-diskless-sync-delay"
	if s.primary, err = newRedis(dir, nums[0], cfg, noDelay, "0"); err != nil {
		return err
	}
	if err := s.primary.start(); err != nil {
		return err
	}
	if s.replica, err = newRedis(dir, nums[1], cfg, noDelay, "0", "--replicaof", "127.0.0.1 "+strconv.Itoa(nums[0])); err != nil {
		return err
	}
	if err := s.replica.start(); err != nil {
		return err
	}
	for _, port := range nums[2:] {
		r, err := newSentinel(dir, port, nums[0], (len(nums)-2)/2+1)
		if err != nil {
			return err
		}
		s.sentinels = append(s.sentinels, r)
		if err := r.start(); err != nil {
			return err
		}
		// The defaults are ten seconds, two and one. They find replicas slowly, and
		// take one late answer on a busy machine for a death.
		if _, err := r.Do("SENTINEL", "DEBUG", "INFO-PERIOD", "500", "PUBLISH-PERIOD", "500", "PING-PERIOD", "250"); err != nil {
			return err
		}
	}
	return poll(StartTimeout, nil, s.settled)
}

// newSentinel prepares a sentinel. The sentinel rewrites its configuration file.
func newSentinel(parent string, port, primary, quorum int) (*Redis, error) {
	path, err := findProgram("redis-sentinel", "valkey-sentinel")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "sentinel-")
	if err != nil {
		return nil, err
	}
	file := filepath.Join(dir, "sentinel.conf")
	conf := []string{
		"port " + strconv.Itoa(port), "bind 127.0.0.1", "dir " + strconv.Quote(dir),
		fmt.Sprintf("sentinel monitor %s 127.0.0.1 %d %d", SentinelMaster, primary, quorum),
		"sentinel down-after-milliseconds " + SentinelMaster + " 3000",
		"sentinel failover-timeout " + SentinelMaster + " 5000",
		"sentinel parallel-syncs " + SentinelMaster + " 1",
	}
	if err := os.WriteFile(file, []byte(strings.Join(conf, "\n")+"\n"), 0o644); err != nil {
		return nil, err
	}
	r := &Redis{addr: loopback(port)}
	r.instance = &instance{
		prog: program{
			name: "redis-sentinel " + r.addr, path: path, args: []string{file},
			dir: dir, log: filepath.Join(dir, "server.log"),
		},
		ready: func(pid int) error { return redisServes(r.addr, pid) },
	}
	return r, nil
}

// settled returns nil once a failover could succeed.
func (s *Sentinel) settled() error {
	link, err := redisField(s.replica.addr, "master_link_status", "INFO", "replication")
	if err != nil {
		return err
	}
	if link != "up" {
		return fmt.Errorf("the replica's link is %s", link)
	}
	// The primary counts the replica once it knows that all data has arrived.
	info, err := s.primary.Do("INFO", "replication")
	if err != nil {
		return err
	}
	if want := "port=" + s.replica.port() + ",state=online"; !strings.Contains(info[0], want) {
		return fmt.Errorf("the primary has no replica with %s", want)
	}
	for _, r := range s.sentinels {
		vals, err := r.Do("SENTINEL", "MASTER", SentinelMaster)
		if err != nil {
			return err
		}
		for field, want := range map[string]int{
			"num-slaves": 1, "num-other-sentinels": len(s.sentinels) - 1,
		} {
			i := slices.Index(vals, field)
			if i < 0 || i+1 >= len(vals) || vals[i+1] != strconv.Itoa(want) {
				return fmt.Errorf("%s of %s is not %d yet", field, r.addr, want)
			}
		}
	}
	return nil
}

func (s *Sentinel) all() []*Redis {
	nodes := append([]*Redis{s.primary, s.replica}, s.sentinels...)
	return slices.DeleteFunc(nodes, func(r *Redis) bool { return r == nil })
}

func (s *Sentinel) killAll() error {
	var all error
	for _, r := range s.all() {
		all = errors.Join(all, r.end(syscall.SIGKILL))
	}
	return all
}

// Primary returns the server started as primary. Its role may have changed.
func (s *Sentinel) Primary() *Redis { return s.primary }

// Replica returns the server started as replica. Its role may have changed.
func (s *Sentinel) Replica() *Redis { return s.replica }

// Sentinels returns the sentinels, for tests to break them.
func (s *Sentinel) Sentinels() []*Redis { return slices.Clone(s.sentinels) }

// Addrs returns host:port of every sentinel, for the client.
func (s *Sentinel) Addrs() []string {
	var addrs []string
	for _, r := range s.sentinels {
		addrs = append(addrs, r.addr)
	}
	return addrs
}

// AwaitPrimary waits until every running sentinel names the server as the
// primary and the server agrees.
func (s *Sentinel) AwaitPrimary(want *Redis) error {
	return poll(StartTimeout, nil, func() error {
		role, err := redisField(want.addr, "role", "INFO", "replication")
		if err != nil {
			return err
		}
		if role != "master" {
			return fmt.Errorf("%s is %s", want.addr, role)
		}
		for _, r := range s.sentinels {
			if !r.answering() {
				continue
			}
			vals, err := r.Do("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SentinelMaster)
			if err != nil {
				return err
			}
			if len(vals) != 2 || net.JoinHostPort(vals[0], vals[1]) != want.addr {
				return fmt.Errorf("%s names %v as primary, not %s", r.addr, vals, want.addr)
			}
		}
		return nil
	})
}
