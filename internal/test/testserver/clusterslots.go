package testserver

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// clusterNode is a node as another node sees it.
type clusterNode struct {
	*Redis
	id, masterID string // masterID is empty for a master
	slots        [][2]int
}

func (n clusterNode) owns(slot int) bool {
	return slices.ContainsFunc(n.slots, func(r [2]int) bool { return r[0] <= slot && slot <= r[1] })
}

// view asks the first node that answers for all nodes (CLUSTER NODES). They are in the order in
// which they were started.
func (c *RedisCluster) view() (nodes []clusterNode, err error) {
	for _, from := range c.nodes {
		if !from.answering() {
			continue
		}
		vals, err := from.Do("CLUSTER", "NODES")
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(vals[0]) {
			f := strings.Fields(line) // id address flags master ping pong epoch link slots…
			if len(f) < 8 {
				continue
			}
			addr, _, _ := strings.Cut(f[1], "@")
			i := slices.IndexFunc(c.nodes, func(r *Redis) bool { return r.addr == addr })
			if i < 0 {
				continue
			}
			n := clusterNode{Redis: c.nodes[i], id: f[0]}
			if f[3] != "-" {
				n.masterID = f[3]
			}
			for _, r := range f[8:] {
				first, last, several := strings.Cut(r, "-")
				if !several {
					last = first
				}
				a, aerr := strconv.Atoi(first) // a slot that moves is in brackets, beside its range
				b, berr := strconv.Atoi(last)
				if aerr == nil && berr == nil {
					n.slots = append(n.slots, [2]int{a, b})
				}
			}
			nodes = append(nodes, n)
		}
		slices.SortFunc(nodes, func(a, b clusterNode) int { // Redis sorts them by their random IDs
			return cmp.Compare(slices.Index(c.nodes, a.Redis), slices.Index(c.nodes, b.Redis))
		})
		return nodes, nil
	}
	return nil, errors.New("testserver: no node of the cluster answers")
}

// Owner returns the master of a key at this moment, and the replica that could take over
// from it, or nil.
func (c *RedisCluster) Owner(key string) (master, replica *Redis, err error) {
	nodes, _, owner, err := c.find(key)
	if err != nil {
		return nil, nil, err
	}
	for _, n := range nodes {
		if n.masterID == owner.id && n.answering() {
			return owner.Redis, n.Redis, nil
		}
	}
	return owner.Redis, nil, nil
}

// find returns all nodes, the slot of a key, and its owner.
func (c *RedisCluster) find(key string) (nodes []clusterNode, slot int, owner clusterNode, err error) {
	if nodes, err = c.view(); err != nil {
		return nil, 0, owner, err
	}
	vals, err := nodes[0].Do("CLUSTER", "KEYSLOT", key)
	if err != nil {
		return nil, 0, owner, err
	}
	if slot, err = strconv.Atoi(vals[0]); err != nil {
		return nil, 0, owner, err
	}
	for _, n := range nodes {
		if n.masterID == "" && n.owns(slot) {
			return nodes, slot, n, nil
		}
	}
	return nil, 0, owner, fmt.Errorf("testserver: no master has slot %d", slot)
}

// MoveSlot moves the slot of a key, with all its keys, to the n-th of the other masters,
// while clients use it. Redis names these steps in its documentation of CLUSTER SETSLOT.
// step is called between them, and may take its time. After an error the slot may be open.
// The next call with the same n goes on.
func (c *RedisCluster) MoveSlot(key string, n int, step func()) error {
	nodes, num, from, err := c.find(key)
	if err != nil {
		return err
	}
	var others []clusterNode
	for _, m := range nodes {
		if m.masterID == "" && m.id != from.id && len(m.slots) > 0 && m.answering() {
			others = append(others, m)
		}
	}
	if len(others) == 0 {
		return errors.New("testserver: there is no other master")
	}
	to, slot := others[n%len(others)], strconv.Itoa(num)
	if _, err := to.Do("CLUSTER", "SETSLOT", slot, "IMPORTING", from.id); err != nil {
		return err
	}
	if _, err := from.Do("CLUSTER", "SETSLOT", slot, "MIGRATING", to.id); err != nil {
		return err
	}
	host, port, _ := strings.Cut(to.addr, ":")
	for {
		step()
		keys, err := from.Do("CLUSTER", "GETKEYSINSLOT", slot, "10")
		if err != nil {
			return err
		}
		if len(keys) == 0 {
			break
		}
		if _, err := from.Do(append([]string{"MIGRATE", host, port, "", "0", "5000", "KEYS"}, keys...)...); err != nil {
			return err
		}
	}
	step()
	for _, r := range append([]clusterNode{to, from}, others...) {
		if _, err := r.Do("CLUSTER", "SETSLOT", slot, "NODE", to.id); err != nil {
			return err
		}
	}
	return nil
}
