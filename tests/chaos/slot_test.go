package chaos

import (
	"cmp"
	"errors"
	"fmt"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/example-payments/kit"
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
	in atomic.Pointer[kit.Instance]

	pastMu sync.Mutex
	past   []*kit.Instance // all there were
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
		"--processor-latency", "40ms", "--session-timeout", kit.SessionTimeout.String()}, c.flags...)
	if len(c.ZK) > 0 {
		to := link{name: "zookeeper", lossy: testserver.Op(testserver.OpMulti)}
		var addrs []string
		for _, host := range c.ZK {
			p := testserver.StartZooKeeperProxy(c.t, host)
			to.proxies, addrs = append(to.proxies, p), append(addrs, p.Addr())
		}
		s.links = append(s.links, to)
		s.flags = append(s.flags, "--zookeeper", strings.Join(addrs, ",")+c.Chroot, "--zookeeper-tick", kit.Tick.String())
	}
	if c.Redis != nil {
		p := c.RedisProxy()
		s.links = append(s.links, link{"redis", []*testserver.Proxy{p}, testserver.Contains("evalsha")})
		s.flags = append(s.flags, "--redis", "redis://"+p.Addr()+"/0")
	} else if c.redisURL != "" {
		s.flags = append(s.flags, "--redis", c.redisURL)
	}
	s.launch()
	in := s.in.Load()
	s.flags = append(s.flags, "--http-addr", in.Addr, "--grpc-addr", in.RPC)
	s.web, s.rpc = testserver.StartTCPProxy(c.t, in.Addr), testserver.StartTCPProxy(c.t, in.RPC)
	s.links = append(s.links, link{name: "clients", proxies: []*testserver.Proxy{s.web, s.rpc}})
	c.lane(s.name, 5*time.Second, s.processFaults()...)
	c.lane(fmt.Sprint("network ", i), 3*time.Second, s.networkFaults()...)
	return s
}

// database puts a proxy in front of the ledger and returns its URL.
func (s *slot) database() string {
	u, err := url.Parse(cmp.Or(s.c.pooled, s.c.books))
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
	in := superviseInstance(quiet{s.c.t}, s.name, s.flags, func(in *kit.Instance) {
		s.pastMu.Lock()
		defer s.pastMu.Unlock()
		s.past = append(s.past, in)
	})
	s.in.Store(in)
}

// client is one that asks this slot, whichever instance has it.
func (s *slot) client(via kit.Transport) kit.Client {
	return kit.Client{Via: via, Addr: s.web.Addr(), RPC: s.rpc.Addr(), Token: "demo"}
}

// lines returns the lines of all logs of the slot that hold a text.
func (s *slot) lines(text string) (all []entry) {
	s.pastMu.Lock()
	defer s.pastMu.Unlock()
	for _, in := range s.past {
		for _, line := range in.Stderr.Lines(text) {
			stamp, rest, _ := strings.Cut(strings.TrimPrefix(line, "time="), " ")
			at, _ := time.Parse(time.RFC3339Nano, stamp) // a line without a time comes first
			all = append(all, entry{at, fmt.Sprintf("%s (process %d): %s", s.name, in.Cmd.Process.Pid, rest)})
		}
	}
	return all
}

// superviseInstance starts an instance and returns once it is ready. If it ends before, it
// is started again: one of its servers may be down, or another program may have its port. A busy
// machine under faults needs several tries. spawned is told of each process.
func superviseInstance(t testing.TB, name string, flags []string, spawned func(*kit.Instance)) (in *kit.Instance) {
	t.Helper()
	kit.Binary(t, "./example-payments") // the build takes time of its own
	var before string                   // what the process before this one said
	err := kit.Poll(5*kit.WaitLimit, func() error {
		if in == nil || !in.Running() {
			if in != nil {
				before = in.Stderr.Tail(2)
			}
			in = kit.SpawnInstance(t, name, flags...)
			spawned(in)
		}
		line, ready := in.Stdout.Find("ready ")
		if m := kit.ReadyLine.FindStringSubmatch(line); ready && m != nil {
			in.Addr, in.RPC = m[1], m[2]
			return nil
		}
		return fmt.Errorf("%w: %s; before: %s", errors.Join(kit.ErrNotYet, in.Ended()), in.Stderr.Tail(2), before)
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
