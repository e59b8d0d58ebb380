package chaos

import (
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// The faults of servers. All faults of one kind of server are in one lane, so they do not
// overlap.

// serverKilled kills a server (kill -9) and starts it on the same data.
type serverKilled struct {
	name   string
	server interface {
		Kill()
		Restart()
	}
}

func (f serverKilled) String() string { return f.name + "-killed" }
func (f serverKilled) hit(c *chaos, s strike) {
	f.server.Kill()
	c.wait(s.lasts)
	f.server.Restart()
}

// serverPaused stops a server and lets it go on (SIGSTOP, SIGCONT).
type serverPaused struct {
	name   string
	server interface {
		Pause()
		Resume()
	}
}

func (f serverPaused) String() string { return f.name + "-paused" }
func (f serverPaused) hit(c *chaos, s strike) {
	f.server.Pause()
	c.wait(s.lasts)
	f.server.Resume()
}

// clockStepped sets the wall clock of a server up to a quarter of an hour ahead or back,
// and back to the true time after a while.
type clockStepped struct {
	name   string
	server onMachine
}

func (f clockStepped) String() string { return f.name + "-clock-stepped" }
func (f clockStepped) hit(c *chaos, s strike) {
	offset := time.Duration(1+s.dice/2%900) * time.Second
	if s.dice%2 == 0 {
		offset = -offset
	}
	f.server.StepClock(offset)
	c.wait(s.lasts)
	f.server.StepClock(0)
	if f.name == "redis" && offset > time.Minute && !c.mayLose {
		c.acceptJump()
	}
}

// acceptJump is the operator's decision after the clock of Redis jumped ahead. Keys live longer than
// a jump is, so nothing was forgotten. Instances without ZooKeeper have no witness to tell them.
func (c *chaos) acceptJump() {
	args := []string{"store", "accept"}
	if len(c.ZK) == 0 {
		args = append(args, "--no-zookeeper")
	}
	c.operate(args...)
	if len(c.ZK) == 0 {
		c.killAll(func() {})
	}
}

// operate runs a command of the operator until it succeeds. The servers may be away at first.
func (c *chaos) operate(args ...string) {
	err := kit.Poll(kit.WaitLimit, func() error {
		if got := c.RunIdemctl(args...); got.Code != 0 {
			return fmt.Errorf("idemctl %v: exit code %d: %s", args, got.Code, got.Stderr)
		}
		return nil
	})
	if err != nil {
		c.t.Error(err)
	}
}

// diskFilled leaves a server without space. Most servers end then. Somebody makes room and
// starts the server.
type diskFilled struct {
	name   string
	server onMachine
}

func (f diskFilled) String() string { return f.name + "-disk-full" }
func (f diskFilled) hit(c *chaos, s strike) {
	f.server.FillDisk()
	c.wait(s.lasts)
	f.server.RecoverDisk()
}

// memoryFull leaves a Redis that has no memory for writes and answers reads.
type memoryFull struct{ redis *testserver.Redis }

func (memoryFull) String() string { return "redis-memory-full" }
func (f memoryFull) hit(c *chaos, s strike) {
	set := func(limit string) {
		if err := kit.Poll(kit.WaitLimit, func() error { _, err := f.redis.Do("CONFIG", "SET", "maxmemory", limit); return err }); err != nil {
			c.t.Errorf("%v: %v", f, err)
		}
	}
	set("1")
	c.wait(s.lasts)
	set("0")
}

// leaderKilled kills the leader of the ensemble, and leaderPaused stops it for a while. The
// others elect another one if that takes long.
type (
	leaderKilled struct{ ensemble *testserver.Ensemble }
	leaderPaused struct{ ensemble *testserver.Ensemble }
)

func (leaderKilled) String() string { return "zookeeper-leader-killed" }
func (f leaderKilled) hit(c *chaos, s strike) {
	serverKilled{"", f.ensemble.Leader()}.hit(c, s)
}

func (leaderPaused) String() string { return "zookeeper-leader-paused" }
func (f leaderPaused) hit(c *chaos, s strike) {
	serverPaused{"", f.ensemble.Leader()}.hit(c, s)
}

// ensembleRestored kills all instances and sets all members back to a copy that one of them made earlier. When
// all are up again, the operator retires the lock domain that was in use, as docs/operations.md says in
// "ZooKeeper came back with older data".
type ensembleRestored struct{ ensemble *testserver.Ensemble }

func (ensembleRestored) String() string { return "zookeeper-restored" }
func (f ensembleRestored) hit(c *chaos, s strike) {
	member := f.ensemble.Followers()[0]
	member.Stop()
	copied := member.Backup()
	member.Restart()
	c.wait(s.lasts) // payments go on
	domain := c.domain()
	c.killAll(func() { f.ensemble.Restore([]string{copied, copied, copied}) })
	c.mu.Lock()
	c.domains = append(c.domains, domain)
	c.mu.Unlock()
	if c.Redis != nil { // the copy does not know of losses that were accepted since
		c.operate("store", "accept")
	}
	c.retire(domain)
}

// domain is the lock domain of the ensemble.
func (c *chaos) domain() (id string) {
	conn := c.ZooKeeper()
	defer conn.Close()
	err := kit.Poll(kit.WaitLimit, func() error {
		data, _, err := conn.Get(c.Chroot + "/idem/domain")
		id = string(data)
		return err
	})
	if err != nil {
		c.t.Errorf("the lock domain: %v", err)
	}
	return id
}

// retire declares that a lock domain is dead. The processes that used it have been killed, so the
// operator need not wait for ten of their sessions. The domain stays alive if the copy lacks no fence.
func (c *chaos) retire(domain string) {
	err := kit.Poll(kit.WaitLimit, func() error {
		got := c.RunIdemctl("store", "retire", domain, "--reason", "restored", "--session-timeout", "1s")
		if got.Code != 0 && !strings.Contains(got.Stderr, "is alive and was not retired") {
			return fmt.Errorf("exit code %d: %s", got.Code, got.Stderr)
		}
		return nil
	})
	if err != nil {
		c.t.Errorf("retire %s: %v", domain, err)
	}
}

// wiped empties Redis.
type wiped struct{ redis *testserver.Redis }

func (wiped) String() string { return "redis-wiped" }
func (f wiped) hit(c *chaos, _ strike) {
	if _, err := f.redis.Do("FLUSHALL"); err != nil {
		c.t.Errorf("FLUSHALL: %v", err)
	}
}

// failedOver kills the primary, and the sentinels promote its replica. If it is stale, the
// replica has been cut off before, and misses everything since then.
type failedOver struct {
	sentinel *testserver.Sentinel
	stale    bool
}

func (f failedOver) String() string {
	if f.stale {
		return "redis-failed-over-stale"
	}
	return "redis-failed-over"
}

func (f failedOver) hit(c *chaos, s strike) {
	primary, replica, err := roles(f.sentinel)
	if err == nil && f.stale {
		err = replica.CutOff(primary)
	}
	if err != nil {
		c.t.Errorf("%v: %v", f, err)
		return
	}
	c.wait(s.lasts)
	primary.Kill()
	err = f.sentinel.AwaitPrimary(replica)
	if f.stale {
		err = errors.Join(err, replica.Rejoin())
	}
	primary.Restart()
	if err = errors.Join(err, awaitReplicaOf(replica, primary)); err != nil {
		c.t.Errorf("%v: %v", f, err)
	}
}

// primaryPaused stops the primary. If that takes long, the sentinels promote the replica,
// and the old primary wakes up beside the new one.
type primaryPaused struct{ sentinel *testserver.Sentinel }

func (primaryPaused) String() string { return "redis-primary-paused" }
func (f primaryPaused) hit(c *chaos, s strike) {
	primary, _, err := roles(f.sentinel)
	if err != nil {
		c.t.Errorf("%v: %v", f, err)
		return
	}
	serverPaused{"", primary}.hit(c, s)
}

// roles waits until the one server is the primary and the other is its replica, and in step. The
// clocks of both show the time again. The sentinels would not promote a replica that lost its
// primary long ago by a clock that was stepped.
func roles(s *testserver.Sentinel) (primary, replica *testserver.Redis, err error) {
	a, b := s.Primary(), s.Replica()
	err = kit.Poll(kit.WaitLimit, func() error {
		roleA, aerr := a.Do("ROLE")
		roleB, berr := b.Do("ROLE")
		switch {
		case aerr != nil || berr != nil:
			return errors.Join(aerr, berr)
		case roleA[0] == "master" && inStep(roleB):
			primary, replica = a, b
		case roleB[0] == "master" && inStep(roleA):
			primary, replica = b, a
		default:
			return fmt.Errorf("the roles are %v and %v", roleA, roleB)
		}
		return errors.Join(onTime(a), onTime(b), s.AwaitPrimary(primary))
	})
	return primary, replica, err
}

// onTime returns nil if the clock of a server shows the time.
func onTime(r *testserver.Redis) error {
	now, err := r.Do("TIME")
	if err != nil {
		return err
	}
	seconds, err := strconv.ParseInt(now[0], 10, 64)
	if off := time.Until(time.Unix(seconds, 0)); err == nil && off.Abs() > 2*time.Second {
		err = fmt.Errorf("the clock of %s is off by %v", r.Addr(), off)
	}
	return err
}

// inStep reports whether an answer to ROLE is that of a connected replica.
func inStep(role []string) bool { return role[0] == "slave" && role[3] == "connected" }

// awaitReplicaOf waits until a server follows another.
func awaitReplicaOf(primary, replica *testserver.Redis) error {
	return kit.Poll(kit.WaitLimit, func() error {
		role, err := replica.Do("ROLE")
		if err == nil && (!inStep(role) || "127.0.0.1:"+role[2] != primary.Addr()) {
			err = fmt.Errorf("%s has the role %v, want a replica of %s", replica.Addr(), role, primary.Addr())
		}
		return err
	})
}

// takenOver kills a master of the cluster, and its replica takes its slots. The old master
// comes back as a replica.
type takenOver struct{ cluster *testserver.RedisCluster }

func (takenOver) String() string { return "redis-taken-over" }
func (f takenOver) hit(c *chaos, s strike) {
	var master, replica *testserver.Redis
	err := kit.Poll(kit.WaitLimit, func() (err error) {
		master, replica, err = f.cluster.Owner(shardKey(s.dice))
		if err == nil && replica == nil {
			err = errors.New("no replica")
		}
		if err == nil {
			err = awaitReplicaOf(master, replica)
		}
		return err
	})
	if err != nil {
		c.t.Errorf("%v: %v", f, err)
		return
	}
	master.Kill()
	err = replica.TakeOver()
	c.wait(s.lasts)
	master.Restart()
	if err = errors.Join(err, awaitReplicaOf(replica, master), f.cluster.AwaitComplete()); err != nil {
		c.t.Errorf("%v: %v", f, err)
	}
}

// slotsMoved moves three shards of the token store to another master, key by key.
type slotsMoved struct{ cluster *testserver.RedisCluster }

func (slotsMoved) String() string { return "redis-slots-moved" }
func (f slotsMoved) hit(c *chaos, s strike) {
	for i := range uint64(3) {
		err := kit.Poll(kit.WaitLimit, func() error {
			return f.cluster.MoveSlot(shardKey(s.dice+i), int(s.dice>>8%2), func() { c.wait(s.lasts) })
		})
		if err != nil {
			c.t.Errorf("%v: %v", f, err)
		}
	}
}

// shardKey is a key in one of the 64 shards of the token store.
func shardKey(dice uint64) string { return fmt.Sprintf("idem:{%02x}:open", dice%64) }
