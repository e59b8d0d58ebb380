package testserver

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// ZooKeeper is one ZooKeeper server: a single one, or a member of an [Ensemble].
// Its data survives Stop, Kill and Restart.
type ZooKeeper struct {
	*instance
	addr   string
	data   string // directory
	member bool   // of an ensemble
}

// StartZooKeeper starts a single server and returns once it serves clients. It
// is killed in the test's clean-up.
func StartZooKeeper(tb testing.TB, opts ...ZooKeeperOption) *ZooKeeper {
	tb.Helper()
	needsServer(tb)
	z, held, err := launchZooKeeper(tb.TempDir(), newZKConfig(opts))
	if err != nil {
		tb.Fatalf("%v", err)
	}
	tb.Cleanup(held.release)
	z.own(tb)
	return z
}

func launchZooKeeper(dir string, cfg zkConfig) (*ZooKeeper, *ports, error) {
	var z *ZooKeeper
	held, err := retryOnBind(1, func(nums []int) (err error) {
		if z, err = newZooKeeper(dir, cfg, zkMember{clientPort: nums[0]}); err != nil {
			return err
		}
		return z.start()
	})
	return z, held, err
}

// newZooKeeper prepares a server without starting it.
func newZooKeeper(parent string, cfg zkConfig, m zkMember) (*ZooKeeper, error) {
	addr := loopback(m.clientPort)
	dir, err := os.MkdirTemp(parent, "zookeeper-")
	if err != nil {
		return nil, err
	}
	var hw hardware
	var env []string
	if cfg.machine != nil {
		if hw, env, err = cfg.machine.equip("java", dir, diskSize); err != nil {
			return nil, err
		}
	}
	file, err := cfg.write(dir, m)
	if err != nil {
		return nil, err
	}
	prog, err := cfg.program(fmt.Sprintf("zookeeper %s", addr), dir, file)
	if err != nil {
		return nil, err
	}
	prog.env = env
	z := &ZooKeeper{addr: addr, data: zkData(dir, cfg), member: len(m.servers) > 0}
	z.instance = &instance{prog: prog, hardware: hw, ready: func(int) error { return z.serves() }}
	return z, nil
}

// serves returns nil if the process at the address is the one with the server's data
// directory, has a role, and can open and close a session.
func (z *ZooKeeper) serves() error {
	if _, err := zkMode(z.addr); err != nil {
		return err
	}
	conf, err := fourLetters(z.addr, "conf")
	if err != nil {
		return err
	}
	if !strings.Contains(conf, "dataDir="+z.data) {
		return fmt.Errorf("%s belongs to another server", z.addr)
	}
	return zkOpenAndClose(z.addr, zkSession{})
}

// RecoverDisk is that of every server. A member of an ensemble whose disk was full may also refuse
// the log that it has left. Then RecoverDisk empties it, and the member gets
// everything from the leader. The other two members have to be up, as for an operator.
func (z *ZooKeeper) RecoverDisk() {
	z.tb.Helper()
	z.makeRoom()
	z.check(z.end(syscall.SIGTERM))
	err := z.start()
	if tail := logTail(z.prog.log, 40); err != nil && z.member && (strings.Contains(tail, "CRC check failed") || strings.Contains(tail, "Unreasonable length")) {
		z.tb.Logf("%s refuses its log, and begins without data", z.prog.name)
		if err = os.RemoveAll(filepath.Join(z.data, "version-2")); err == nil {
			err = z.start()
		}
	}
	z.check(err)
}

// Addr returns host:port of the client port.
func (z *ZooKeeper) Addr() string { return z.addr }

// Data returns the data directory.
func (z *ZooKeeper) Data() string { return z.data }

// Hosts returns the address as a list, the form that clients take.
func (z *ZooKeeper) Hosts() []string { return []string{z.addr} }

// ConnectString returns the address in the form host:port,….
func (z *ZooKeeper) ConnectString() string { return z.addr }

// Mode asks for the server's role: "standalone", "leader" or "follower". A
// server that is down, paused or without a quorum is an error.
func (z *ZooKeeper) Mode() (string, error) { return zkMode(z.addr) }

// Command sends a four-letter command such as "mntr", "cons" or "dump" and
// returns the answer.
func (z *ZooKeeper) Command(word string) (string, error) { return fourLetters(z.addr, word) }
