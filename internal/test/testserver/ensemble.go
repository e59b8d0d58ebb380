package testserver

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"syscall"
	"testing"
)

// Ensemble is several ZooKeeper servers that replicate to each other. A test breaks
// them through the methods of its members (see [ZooKeeper]).
type Ensemble struct {
	tb      testing.TB
	members []*ZooKeeper
}

// StartEnsemble starts n servers and returns once each of them serves clients
// and one leads. The test's clean-up kills them. Three servers survive the loss of
// one, and five the loss of two.
func StartEnsemble(tb testing.TB, n int, opts ...ZooKeeperOption) *Ensemble {
	tb.Helper()
	needsServer(tb)
	if n < 2 {
		tb.Fatalf("testserver: StartEnsemble(%d): an ensemble has two members or more", n)
	}
	dir, cfg := tb.TempDir(), newZKConfig(opts)
	e := &Ensemble{tb: tb}
	held, err := retryOnBind(3*n, func(nums []int) (err error) {
		if e.members, err = newMembers(dir, cfg, nums); err != nil {
			return err
		}
		if err = e.startAll(); err != nil {
			return errors.Join(err, e.killAll())
		}
		return nil
	})
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	for _, z := range e.members {
		z.own(tb)
	}
	return e
}

// newMembers prepares one server for every three ports: client, quorum, election.
func newMembers(dir string, cfg zkConfig, nums []int) ([]*ZooKeeper, error) {
	var servers []string
	for i := 0; i < len(nums); i += 3 {
		servers = append(servers, fmt.Sprintf("server.%d=127.0.0.1:%d:%d", i/3+1, nums[i+1], nums[i+2]))
	}
	var members []*ZooKeeper
	for i := range servers {
		z, err := newZooKeeper(dir, cfg, zkMember{id: i + 1, clientPort: nums[3*i], servers: servers})
		if err != nil {
			return nil, err
		}
		members = append(members, z)
	}
	return members, nil
}

// startAll starts all members that are down before it waits for the first, since a
// member cannot serve without a quorum.
func (e *Ensemble) startAll() error {
	for _, z := range e.members {
		if z.answering() {
			continue
		}
		if err := z.spawn(); err != nil {
			return err
		}
	}
	for _, z := range e.members {
		if err := z.await(); err != nil {
			return err
		}
	}
	return nil
}

func (e *Ensemble) killAll() error {
	var all error
	for _, z := range e.members {
		all = errors.Join(all, z.end(syscall.SIGKILL))
	}
	return all
}

// Members returns all servers, in the order of their IDs from 1.
func (e *Ensemble) Members() []*ZooKeeper { return slices.Clone(e.members) }

// Hosts returns host:port of every member.
func (e *Ensemble) Hosts() []string {
	var hosts []string
	for _, z := range e.members {
		hosts = append(hosts, z.addr)
	}
	return hosts
}

// ConnectString returns the addresses in the form host:port,….
func (e *Ensemble) ConnectString() string { return strings.Join(e.Hosts(), ",") }

// Leader waits until the members agree on a leader and returns it. They agree when
// one member leads, and the leader and its followers are a majority. A deposed
// leader may believe in itself for a while. Call Leader from the test's goroutine,
// since it ends the test after StartTimeout.
func (e *Ensemble) Leader() *ZooKeeper {
	e.tb.Helper()
	leader, _ := e.roles()
	return leader
}

// Followers waits as Leader does and returns the members that follow.
func (e *Ensemble) Followers() []*ZooKeeper {
	e.tb.Helper()
	_, followers := e.roles()
	return followers
}

func (e *Ensemble) roles() (leader *ZooKeeper, followers []*ZooKeeper) {
	e.tb.Helper()
	err := poll(StartTimeout, nil, func() error {
		var leaders []*ZooKeeper
		followers = nil
		for _, z := range e.members {
			if !z.answering() {
				continue
			}
			switch mode, _ := z.Mode(); mode {
			case "leader":
				leaders = append(leaders, z)
			case "follower":
				followers = append(followers, z)
			}
		}
		if len(leaders) != 1 || 1+len(followers) <= len(e.members)/2 {
			return fmt.Errorf("%d leaders, %d followers of %d members", len(leaders), len(followers), len(e.members))
		}
		leader = leaders[0]
		return nil
	})
	if err != nil {
		e.tb.Fatalf("testserver: no leader: %v", err)
	}
	return leader, followers
}

// RestartAll resumes the paused members, starts the members that are down, and
// returns once all serve. Use it without a quorum, since a member's own Restart
// would wait for one. It reports errors with tb.Errorf.
func (e *Ensemble) RestartAll() {
	e.tb.Helper()
	for _, z := range e.members {
		z.Resume()
	}
	if err := e.startAll(); err != nil {
		e.tb.Errorf("%v", err)
	}
}
