package tests

import (
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
)

// slot is the place of an instance. Its ports and the proxies around it stay.
type slot struct {
	c     *chaos
	name  string
	flags []string
	links []link
	web   *testserver.Proxy // of the clients, over HTTP
	rpc   *testserver.Proxy // over gRPC

	mu sync.Mutex // held by a fault of the process
	in atomic.Pointer[instance]

	pastMu sync.Mutex
	past   []*instance // all there were
}

// link is the connections of a slot to one kind of server, or those of its clients.
type link struct {
	name    string
	proxies []*testserver.Proxy
	lossy   testserver.Match // the requests whose reply may get lost; nil if the proxy does not know them
}

func (l link) each(do func(*testserver.Proxy)) {
	for _, p := range l.proxies {
		do(p)
	}
}

func (l link) restore() { l.each((*testserver.Proxy).Restore) }

// newSlot starts an instance behind proxies, and adds the lanes of its faults.
func (c *chaos) newSlot(i int) *slot {
	s := &slot{c: c, name: fmt.Sprint("instance ", i)}
	host := ownLoopback()
	s.flags = append([]string{"--http-addr", host + ":0", "--grpc-addr", host + ":0", "--database", s.database(),
		"--processor-latency", "40ms", "--session-timeout", sessionTimeout.String()}, c.flags...)
	if len(c.zk) > 0 {
		to := link{name: "zookeeper", lossy: testserver.Op(testserver.OpMulti)}
		var addrs []string
		for _, host := range c.zk {
			p := testserver.StartZooKeeperProxy(c.t, host)
			to.proxies, addrs = append(to.proxies, p), append(addrs, p.Addr())
		}
		s.links = append(s.links, to)
		s.flags = append(s.flags, "--zookeeper", strings.Join(addrs, ",")+c.chroot, "--zookeeper-tick", tick.String())
	}
	if c.redis != nil {
		p := c.redisProxy()
		s.links = append(s.links, link{"redis", []*testserver.Proxy{p}, testserver.Contains("evalsha")})
		s.flags = append(s.flags, "--redis", "redis://"+p.Addr()+"/0")
	} else if c.redisURL != "" {
		s.flags = append(s.flags, "--redis", c.redisURL)
	}
	s.launch()
	in := s.in.Load()
	s.flags = append(s.flags, "--http-addr", in.addr, "--grpc-addr", in.rpc)
	s.web, s.rpc = testserver.StartTCPProxy(c.t, in.addr), testserver.StartTCPProxy(c.t, in.rpc)
	s.links = append(s.links, link{name: "clients", proxies: []*testserver.Proxy{s.web, s.rpc}})
	c.lane(s.name, 5*time.Second, s.processFaults()...)
	c.lane(fmt.Sprint("network ", i), 3*time.Second, s.networkFaults()...)
	return s
}

// database puts a proxy in front of the ledger and returns its URL.
func (s *slot) database() string {
	u, err := url.Parse(s.c.database.URL())
	if err != nil {
		s.c.t.Fatal(err)
	}
	p := testserver.StartTCPProxy(s.c.t, u.Host)
	s.links = append(s.links, link{name: "database", proxies: []*testserver.Proxy{p}})
	u.Host = p.Addr()
	return u.String()
}

// launch starts an instance, as its supervisor would.
func (s *slot) launch() {
	in := superviseInstance(quiet{s.c.t}, s.name, s.flags, func(in *instance) {
		s.pastMu.Lock()
		defer s.pastMu.Unlock()
		s.past = append(s.past, in)
	})
	s.in.Store(in)
}

// client is one that asks this slot, whichever instance has it.
func (s *slot) client(via transport) client {
	return client{via: via, addr: s.web.Addr(), rpc: s.rpc.Addr(), token: "demo"}
}

// lines returns the lines of all logs of the slot that hold a text.
func (s *slot) lines(text string) (all []entry) {
	s.pastMu.Lock()
	defer s.pastMu.Unlock()
	for _, in := range s.past {
		for _, line := range in.stderr.lines(text) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, _ := time.Parse(time.RFC3339Nano, stamp) // a line without a time comes first
			all = append(all, entry{at, fmt.Sprintf("%s (process %d): %s", s.name, in.cmd.Process.Pid, rest)})
		}
	}
	return all
}

// superviseInstance starts an instance and returns once it is ready. If it ends before, it
// is started again: one of its servers may be down, or another program may have its port. A busy
// machine under faults needs several tries. spawned is told of each process.
func superviseInstance(t testing.TB, name string, flags []string, spawned func(*instance)) (in *instance) {
	t.Helper()
	binary(t, "./example-payments") // the build takes time of its own
	var before string               // what the process before this one said
	err := poll(5*waitLimit, func() error {
		if in == nil || !in.running() {
			if in != nil {
				before = in.stderr.tail(2)
			}
			in = spawnInstance(t, name, flags...)
			spawned(in)
		}
		line, ready := in.stdout.find("ready ")
		if m := readyLine.FindStringSubmatch(line); ready && m != nil {
			in.addr, in.rpc = m[1], m[2]
			return nil
		}
		return fmt.Errorf("%w: %s; before: %s", errors.Join(errNotYet, in.ended()), in.stderr.tail(2), before)
	})
	if err != nil {
		t.Fatalf("no start of %s: %v", name, err)
	}
	return in
}

// quiet is a test whose many processes do not show their logs when it fails. The stories of
// its keys have the lines that matter.
type quiet struct{ testing.TB }

func (quiet) Failed() bool { return false }
