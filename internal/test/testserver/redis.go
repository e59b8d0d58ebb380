package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
)

// RedisOption changes how a Redis server is started.
type RedisOption func(*redisConfig)

type redisConfig struct {
	args     []string
	replicas bool // of a cluster
	machine  *Machine
}

// WithRedisArgs appends arguments of redis-server, for example
// "--appendonly", "yes" or "--maxmemory-policy", "allkeys-lru". They win over
// the harness's own.
func WithRedisArgs(args ...string) RedisOption {
	return func(c *redisConfig) { c.args = append(c.args, args...) }
}

// WithClusterReplicas gives every master of a [RedisCluster] one replica. Other
// servers ignore it.
func WithClusterReplicas() RedisOption { return func(c *redisConfig) { c.replicas = true } }

// OnRedisMachine gives the server, or each of several, a clock and a disk of its own.
func OnRedisMachine(m *Machine) RedisOption { return func(c *redisConfig) { c.machine = m } }

func newRedisConfig(opts []RedisOption) redisConfig {
	var c redisConfig
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	return c
}

// Redis is one Redis server. It keeps its data in memory only: after a Restart
// it is empty, unless it was started with WithRedisArgs("--appendonly", "yes").
type Redis struct {
	*instance
	addr string
}

// StartRedis starts a server and returns once it answers. It is killed in the
// test's clean-up.
func StartRedis(tb testing.TB, opts ...RedisOption) *Redis {
	tb.Helper()
	needsServer(tb)
	r, held, err := launchRedis(tb.TempDir(), newRedisConfig(opts))
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	r.own(tb)
	return r
}

func launchRedis(dir string, cfg redisConfig) (*Redis, *ports, error) {
	var r *Redis
	held, err := retryOnBind(1, func(nums []int) (err error) {
		if r, err = newRedis(dir, nums[0], cfg); err != nil {
			return err
		}
		return r.start()
	})
	return r, held, err
}

// newRedis prepares a server without starting it.
func newRedis(parent string, port int, cfg redisConfig, args ...string) (*Redis, error) {
	path, err := findProgram("redis-server", "valkey-server")
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp(parent, "redis-")
	if err != nil {
		return nil, err
	}
	r, data := &Redis{addr: loopback(port)}, dir
	var hw hardware
	var env []string
	if cfg.machine != nil {
		if hw, env, err = cfg.machine.equip(path, dir, diskSize); err != nil {
			return nil, err
		}
		data = filepath.Join(dir, "disk")
	}
	own := []string{
		"--port", strconv.Itoa(port), "--bind", "127.0.0.1", "--dir", data,
		"--save", "", "--appendonly", "no", "--daemonize", "no",
	}
	r.instance = &instance{
		prog: program{
			name: "redis " + r.addr, path: path, args: slices.Concat(own, args, cfg.args),
			dir: dir, log: filepath.Join(dir, "server.log"), env: env,
		},
		hardware: hw,
		ready:    func(pid int) error { return redisServes(r.addr, pid) },
	}
	return r, nil
}

// redisServes returns nil if the process with this ID answers at the address and has its data.
// Asking for the ID excludes a foreign server on the same port.
func redisServes(addr string, pid int) error {
	got, err := redisField(addr, "process_id", "INFO", "server")
	if err != nil {
		return err
	}
	if got != strconv.Itoa(pid) {
		return fmt.Errorf("%s belongs to process %s", addr, got)
	}
	if loading, err := redisField(addr, "loading", "INFO", "persistence"); err == nil && loading != "0" {
		return fmt.Errorf("%s is loading its data", addr)
	}
	return nil
}

// Addr returns host:port.
func (r *Redis) Addr() string { return r.addr }

// URL returns redis://host:port/0.
func (r *Redis) URL() string { return "redis://" + r.addr + "/0" }

// Do sends one command over a connection of its own and returns the scalars of
// the answer, flattened; an error reply becomes an error. It is meant for
// looking behind the back of the client under test.
func (r *Redis) Do(args ...string) ([]string, error) { return redisDo(r.addr, args...) }
