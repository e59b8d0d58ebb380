package testserver

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"syscall"
	"testing"
)

const clusterSlots = 16384

// RedisCluster is a Redis Cluster of masters, with one replica each under
// [WithClusterReplicas]. The masters share the slots evenly, in order. Break them
// one by one, see [Redis].
type RedisCluster struct {
	nodes   []*Redis // masters first
	masters int
}

// StartRedisCluster starts a cluster and returns once every node calls it
// complete. It is killed in the test's clean-up. A node that stays away for
// five seconds makes the rest refuse all commands (CLUSTERDOWN), as Redis does by
// default. A Restart brings it back with its slots.
func StartRedisCluster(tb testing.TB, masters int, opts ...RedisOption) *RedisCluster {
	tb.Helper()
	needsServer(tb)
	if masters < 1 {
		tb.Fatalf("testserver: StartRedisCluster(%d): no master", masters)
	}
	dir, cfg := tb.TempDir(), newRedisConfig(opts)
	c := &RedisCluster{}
	nodes := masters
	if cfg.replicas {
		nodes *= 2
	}
	held, err := retryOnBind(2*nodes, func(nums []int) error {
		*c = RedisCluster{masters: masters}
		if err := c.launch(dir, cfg, nums); err != nil {
			return errors.Join(err, c.killAll())
		}
		return nil
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	for _, r := range c.nodes {
		r.own(tb)
	}
	return c
}

// launch uses the first half of nums for clients and the second for the
// cluster bus. Its default, 10000 above the first, would not be reserved.
func (c *RedisCluster) launch(dir string, cfg redisConfig, nums []int) error {
	n := len(nums) / 2
	for i := range n {
		r, err := newRedis(dir, nums[i], cfg,
			"--cluster-enabled", "yes", "--cluster-node-timeout", "5000", "--repl-diskless-sync-delay", "1",
			"--cluster-port", strconv.Itoa(nums[n+i]))
		if err != nil {
			return err
		}
		c.nodes = append(c.nodes, r)
		if err := r.start(); err != nil {
			return err
		}
	}
	for i, r := range c.nodes {
		if first, last := i*clusterSlots/c.masters, (i+1)*clusterSlots/c.masters-1; i < c.masters {
			if _, err := r.Do("CLUSTER", "ADDSLOTSRANGE", strconv.Itoa(first), strconv.Itoa(last)); err != nil {
				return err
			}
		}
		// Epochs must differ before the nodes meet, as with redis-cli --cluster create.
		if _, err := r.Do("CLUSTER", "SET-CONFIG-EPOCH", strconv.Itoa(i+1)); err != nil {
			return err
		}
		host, port, _ := net.SplitHostPort(r.addr)
		if _, err := c.nodes[0].Do("CLUSTER", "MEET", host, port, strconv.Itoa(nums[n+i])); err != nil {
			return err
		}
	}
	if err := poll(StartTimeout, nil, c.complete); err != nil {
		return err
	}
	for i, r := range c.Replicas() {
		if err := r.replicate(c.nodes[i]); err != nil {
			return err
		}
	}
	return nil
}

// replicate makes a node of a cluster the replica of another, and waits until
// both are in step and the replica could take over.
func (r *Redis) replicate(master *Redis) error {
	id, err := master.Do("CLUSTER", "MYID")
	if err != nil {
		return err
	}
	if _, err := r.Do("CLUSTER", "REPLICATE", id[0]); err != nil {
		return err
	}
	return master.AwaitReplica(r)
}

// TakeOver makes a replica of a cluster the master of its master's slots, with its
// own data and without asking the others. This is the result of a failover from a
// dead master. TakeOver returns once the replica calls itself master. The other
// nodes learn of it soon after, see AwaitComplete.
func (r *Redis) TakeOver() error {
	if _, err := r.Do("CLUSTER", "FAILOVER", "TAKEOVER"); err != nil {
		return err
	}
	return poll(StartTimeout, nil, func() error {
		role, err := redisField(r.addr, "role", "INFO", "replication")
		if err == nil && role != "master" {
			err = fmt.Errorf("%s is %s", r.addr, role)
		}
		return err
	})
}

// complete returns nil once every running node knows all others and covers
// all slots.
func (c *RedisCluster) complete() error {
	for _, r := range c.nodes {
		if !r.answering() {
			continue
		}
		for field, want := range map[string]string{
			"cluster_state":       "ok",
			"cluster_known_nodes": strconv.Itoa(len(c.nodes)),
			"cluster_slots_ok":    strconv.Itoa(clusterSlots),
		} {
			got, err := redisField(r.addr, field, "CLUSTER", "INFO")
			if err != nil {
				return err
			}
			if got != want {
				return fmt.Errorf("%s of %s is %s, want %s", field, r.addr, got, want)
			}
		}
	}
	return nil
}

func (c *RedisCluster) killAll() error {
	var all error
	for _, r := range c.nodes {
		all = errors.Join(all, r.end(syscall.SIGKILL))
	}
	return all
}

// AwaitComplete waits until every running node calls the cluster
// complete, after a Restart for instance.
func (c *RedisCluster) AwaitComplete() error { return poll(StartTimeout, nil, c.complete) }

// Nodes returns the masters in the order of their slots.
func (c *RedisCluster) Nodes() []*Redis { return slices.Clone(c.nodes[:c.masters]) }

// Replicas returns the replicas, each at the index of its master in Nodes.
func (c *RedisCluster) Replicas() []*Redis { return slices.Clone(c.nodes[c.masters:]) }

// Addrs returns host:port of every node.
func (c *RedisCluster) Addrs() []string {
	var addrs []string
	for _, r := range c.nodes {
		addrs = append(addrs, r.addr)
	}
	return addrs
}

// NodeFor returns the master of a key at the start.
func (c *RedisCluster) NodeFor(key string) (*Redis, error) {
	vals, err := c.nodes[0].Do("CLUSTER", "KEYSLOT", key)
	if err != nil {
		return nil, err
	}
	slot, err := strconv.Atoi(vals[0])
	if err != nil {
		return nil, err
	}
	for i := range c.masters {
		if slot < (i+1)*clusterSlots/c.masters {
			return c.nodes[i], nil
		}
	}
	return nil, fmt.Errorf("testserver: no node for slot %d", slot)
}
