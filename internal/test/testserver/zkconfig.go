package testserver

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"
)

const installHint = "install Debian packages libzookeeper-java, default-jre-headless, redis-server, redis-sentinel, postgresql, nginx-light and haproxy, or run make servers"

// ZooKeeperOption changes how a ZooKeeper server is started.
type ZooKeeperOption func(*zkConfig)

type zkConfig struct {
	tick       time.Duration
	lines      []string
	jvm        []string
	production bool
	machine    *Machine
}

// WithTickTime sets the server's tick. The default is 500 ms. Sessions are allowed from
// two ticks to 60 s, and expire at a multiple of the tick.
func WithTickTime(d time.Duration) ZooKeeperOption {
	return func(c *zkConfig) { c.tick = d }
}

// WithConfig appends lines to zoo.cfg, for example "extendedTypesEnabled=true".
// A key given here wins over the harness's own.
func WithConfig(lines ...string) ZooKeeperOption {
	return func(c *zkConfig) { c.lines = append(c.lines, lines...) }
}

// WithJVMArgs appends arguments of the Java virtual machine, for system
// properties outside of zoo.cfg, such as "-Dznode.container.checkIntervalMs=500".
func WithJVMArgs(args ...string) ZooKeeperOption {
	return func(c *zkConfig) { c.jvm = append(c.jvm, args...) }
}

// AsInProduction starts the server as ZooKeeper's own script does, for
// measurements. The server waits for its disk before it acknowledges a write, extends its
// log in the usual steps, has a heap of 1000 MB, and leaves the compiler and the
// garbage collector to the Java virtual machine. Without it a server starts fast and
// needs little memory, and its code stays slow.
func AsInProduction() ZooKeeperOption {
	return func(c *zkConfig) {
		c.production = true
		c.lines = append(c.lines, "forceSync=yes", "preAllocSize=65536")
	}
}

// OnZooKeeperMachine gives the server, or each member of an ensemble, a clock and a disk of
// its own.
func OnZooKeeperMachine(m *Machine) ZooKeeperOption {
	return func(c *zkConfig) { c.machine = m }
}

func newZKConfig(opts []ZooKeeperOption) zkConfig {
	c := zkConfig{tick: 500 * time.Millisecond}
	for _, opt := range opts {
		if opt != nil {
			opt(&c)
		}
	}
	return c
}

// zkMember is one server's place in an ensemble. server lists all of them and
// is empty for a single server.
type zkMember struct {
	id         int
	clientPort int
	servers    []string
}

// zkData is the data directory of a server in dir.
func zkData(dir string, c zkConfig) string {
	if c.machine != nil {
		return filepath.Join(dir, "disk", "data")
	}
	return filepath.Join(dir, "data")
}

// write puts zoo.cfg and myid into dir and returns the file's name.
func (c zkConfig) write(dir string, m zkMember) (string, error) {
	data := zkData(dir, c)
	if err := os.MkdirAll(data, 0o755); err != nil {
		return "", err
	}
	tick := c.tick.Milliseconds()
	lines := []string{
		fmt.Sprintf("tickTime=%d", tick),
		fmt.Sprintf("minSessionTimeout=%d", 2*tick),
		"maxSessionTimeout=60000",
		"dataDir=" + data,
		fmt.Sprintf("clientPort=%d", m.clientPort),
		"clientPortAddress=127.0.0.1",
		"admin.enableServer=false",
		"4lw.commands.whitelist=*",
		"maxClientCnxns=0",
		"initLimit=40",
		"syncLimit=8",       // a paused leader is noticed after eight ticks
		"forceSync=no",      // a killed process loses nothing: the page cache survives it
		"preAllocSize=4096", // KiB
	}
	if len(m.servers) > 0 {
		lines = append(lines, m.servers...)
		if err := os.WriteFile(filepath.Join(data, "myid"), []byte(strconv.Itoa(m.id)), 0o644); err != nil {
			return "", err
		}
	}
	if c.machine != nil {
		lines = append(lines, "preAllocSize=64") // KiB, so that a full disk is felt soon
	}
	lines = append(lines, c.lines...)
	file := filepath.Join(dir, "zoo.cfg")
	return file, os.WriteFile(file, []byte(strings.Join(lines, "\n")+"\n"), 0o644)
}

// program returns the command line of a server with the given zoo.cfg.
func (c zkConfig) program(name, dir, cfgFile string) (program, error) {
	java, err := exec.LookPath("java")
	if err != nil {
		return program{}, fmt.Errorf("testserver: java is not installed: %s", installHint)
	}
	classpath, err := zkClasspath()
	if err != nil {
		return program{}, err
	}
	args := []string{"-Xmx256m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"}
	if c.production {
		args = []string{"-Xmx1000m"}
	}
	args = append(args, "-Dorg.slf4j.simpleLogger.showDateTime=true")
	args = append(args, c.jvm...)
	args = append(args, "-cp", classpath, "org.apache.zookeeper.server.quorum.QuorumPeerMain", cfgFile)
	return program{name: name, path: java, args: args, dir: dir, log: filepath.Join(dir, "server.log")}, nil
}

// zkClasspath lists the jars of Debian's package libzookeeper-java.
func zkClasspath() (string, error) {
	dir := filepath.Join(os.Getenv(EnvRoot), "/usr/share/java")
	if _, err := os.Stat(filepath.Join(dir, "zookeeper.jar")); err != nil {
		dir = "/usr/share/java"
	}
	var jars []string
	for _, name := range []string{
		"zookeeper-jute", "slf4j-api", "slf4j-simple", "metrics-core", "snappy-java", "commons-cli", "commons-io", "commons-lang3",
		"zookeeper", // the last, because it names the others by their absolute paths
	} {
		jars = append(jars, filepath.Join(dir, name+".jar"))
	}
	netty, err := filepath.Glob(filepath.Join(dir, "netty-[a-z]*[a-z].jar")) // links without a version
	if err != nil {
		return "", err
	}
	for _, jar := range jars {
		if _, err := os.Stat(jar); errors.Is(err, os.ErrNotExist) {
			return "", fmt.Errorf("testserver: %s is missing: %s", jar, installHint)
		}
	}
	return strings.Join(append(netty, jars...), ":"), nil
}
