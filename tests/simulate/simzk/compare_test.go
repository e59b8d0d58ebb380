package simzk

import (
	"cmp"
	"context"
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-zookeeper/zk"

	"github.com/idemkeeper/idemkeeper/internal/test/testserver"
	"github.com/idemkeeper/idemkeeper/tests/simulate/simnet"
)

func TestMain(m *testing.M) { os.Exit(testserver.Main(m)) }

var (
	histories = flag.Int("histories", 60, "how many random histories to compare")
	from      = flag.Uint64("from", 1, "the seed of the first history")
)

// compareWithoutRaceDetector runs the comparison in a process of its own. The client library has a
// data race of its own when it sets its watches again: Conn.sendSetWatches reads the last zxid
// while Conn.recvLoop may write it (zk v1.0.4). Idemkeeper's sessions hide zxids from it.
func compareWithoutRaceDetector(t *testing.T) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), "go", "test", "-count=1", "-run", "^TestTheSimulatedServerAnswersAsTheRealOne$",
		".", "-args", "-histories", strconv.Itoa(*histories), "-from", strconv.FormatUint(*from, 10))
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("%v:\n%s", err, out)
	}
}

// TestTheSimulatedServerAnswersAsTheRealOne makes the same random operations of several
// sessions at both, one after the other, and compares every answer and every event.
func TestTheSimulatedServerAnswersAsTheRealOne(t *testing.T) {
	if raceEnabled {
		compareWithoutRaceDetector(t)
		return
	}
	server := testserver.StartZooKeeper(t)
	for i := range *histories {
		seed := *from + uint64(i)
		theirs := newHistory(t, server.Hosts(), new(net.Dialer).DialContext, fmt.Sprintf("/history-%d", seed), seed).run()
		var ours []string
		synctest.Test(t, func(t *testing.T) {
			nw := simnet.New(seed, simnet.Profile{Least: time.Millisecond, Most: 2 * time.Millisecond})
			e := New(seed, nw, Config{Servers: []string{"zk:2181"}, Tick: time.Second, Speed: 1, SyncLimit: time.Hour, Election: time.Second, Containers: time.Hour})
			dial := func(ctx context.Context, _, host string) (net.Conn, error) { return nw.Dial(ctx, "client", host) }
			ours = newHistory(t, []string{"zk:2181"}, dial, fmt.Sprintf("/history-%d", seed), seed).run()
			e.Stop()
		})
		for n := range max(len(ours), len(theirs)) {
			a, b := "nothing", "nothing"
			if n < len(ours) {
				a = ours[n]
			}
			if n < len(theirs) {
				b = theirs[n]
			}
			if a != b {
				t.Fatalf("history %d, line %d:\n  simulated %s\n  real      %s\nafter\n  %s", seed, n, a, b, strings.Join(theirs[max(0, n-12):n], "\n  "))
			}
		}
	}
}

// sessions is how many a history has, and steps how many operations.
const sessions, steps = 3, 80

// history is one run at one server.
type history struct {
	t    *testing.T
	host []string
	dial func(ctx context.Context, network, address string) (net.Conn, error)
	root string
	rnd  *rand.Rand

	sessions []*client
	numbers  map[int64]int // of the session IDs
	base     int64         // the zxid that counts as 0
	lines    []string
}

// client is one client.
type client struct {
	conn  *zk.Conn
	state chan zk.State

	mu      sync.Mutex
	nc      *watchful
	away    chan struct{} // closed when it may connect
	events  []string
	watches []<-chan zk.Event // that may not have fired
}

// watchful tells when the library has set its watches again.
type watchful struct {
	net.Conn

	set chan struct{}
}

// Write is called with one request.
func (w *watchful) Write(p []byte) (int, error) {
	const setWatches = 101 // https://zookeeper.apache.org/doc/current/apidocs/zookeeper-server/org/apache/zookeeper/ZooDefs.OpCode.html
	if len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == setWatches {
		defer close(w.set)
	}
	return w.Conn.Write(p)
}

func newHistory(t *testing.T, host []string, dial func(context.Context, string, string) (net.Conn, error), root string, seed uint64) *history {
	return &history{t: t, host: host, dial: dial, root: root, rnd: simnet.Random(seed, "history"), numbers: map[int64]int{0: 0}}
}

type quiet struct{}

func (quiet) Printf(string, ...any) {}

// open starts the session of a client.
func (h *history) open() *client {
	here := make(chan struct{})
	close(here)
	s := &client{state: make(chan zk.State, 100), away: here}
	var err error
	s.conn, _, err = zk.Connect(h.host, 30*time.Second, zk.WithLogger(quiet{}), zk.WithDialer(func(network, address string, timeout time.Duration) (net.Conn, error) {
		s.mu.Lock()
		away := s.away
		s.mu.Unlock()
		<-away
		ctx, cancel := context.WithTimeout(context.Background(), timeout)
		defer cancel()
		nc, err := h.dial(ctx, network, address)
		if err != nil {
			return nil, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.nc = &watchful{nc, make(chan struct{})}
		return s.nc, nil
	}), zk.WithHostProvider(new(oneHost)), zk.WithEventCallback(func(ev zk.Event) {
		if ev.Type == zk.EventSession {
			if ev.Server != "" {
				s.state <- ev.State
			}
			return
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		if ev.Type != zk.EventNotWatching { // the library makes it itself
			s.events = append(s.events, fmt.Sprint(ev.Type, " ", ev.Path))
		}
	}))
	if err != nil {
		h.t.Fatal(err)
	}
	s.await(zk.StateHasSession)
	h.numbers[s.conn.SessionID()] = len(h.numbers)
	return s
}

// oneHost is a host provider without a resolver.
type oneHost struct{ host string }

func (o *oneHost) Init(servers []string) error { o.host = servers[0]; return nil }
func (o *oneHost) Len() int                    { return 1 }
func (o *oneHost) Next() (string, bool)        { return o.host, false }
func (o *oneHost) Connected()                  {}

// round waits for an answer, and so for the events before it.
func (s *client) round() { _, _, _ = s.conn.Exists("/") } //nolint:dogsled // the answer does not matter

// watched notes a watch, which is none after an error.
func (s *client) watched(fired <-chan zk.Event) {
	if fired != nil {
		s.watches = append(s.watches, fired)
	}
}

func (s *client) await(want zk.State) {
	for got := range s.state {
		if got == want {
			return
		}
	}
}

// leave breaks the connection, and keeps the client away until back.
func (s *client) leave() {
	s.mu.Lock()
	s.away = make(chan struct{})
	_ = s.nc.Close()
	s.mu.Unlock()
	s.await(zk.StateDisconnected)
}

// back returns when the library has set its watches again, which it does beside the requests of its caller.
func (s *client) back() {
	watching := false
	for _, fired := range s.watches {
		select {
		case <-fired:
		default:
			watching = true
		}
	}
	close(s.away)
	s.await(zk.StateHasSession)
	if watching {
		s.mu.Lock()
		set := s.nc.set
		s.mu.Unlock()
		<-set
	}
}

// run makes the history, and returns its answers and events.
func (h *history) run() []string {
	for range sessions {
		h.sessions = append(h.sessions, h.open())
	}
	_, err := h.sessions[0].conn.Create(h.root, nil, 0, zk.WorldACL(zk.PermAll))
	h.note(0, "create root", err)
	_, stat, _ := h.sessions[0].conn.Exists(h.root)
	h.base = stat.Czxid
	for range steps {
		h.step()
	}
	for i, s := range h.sessions {
		s.conn.Close()
		h.gather(i)
	}
	return h.lines
}

// note adds a line to the history.
func (h *history) note(client int, what string, results ...any) {
	var line strings.Builder
	fmt.Fprintf(&line, "%d: %s:", client, what)
	for _, r := range results {
		if stat, ok := r.(*zk.Stat); ok && stat != nil {
			z := func(zxid int64) int64 { return zxid - h.base }
			r = fmt.Sprintf("{c%d m%d p%d v%d cv%d av%d of %d, %d bytes, %d children}", z(stat.Czxid), z(stat.Mzxid), z(stat.Pzxid),
				stat.Version, stat.Cversion, stat.Aversion, h.numbers[stat.EphemeralOwner], stat.DataLength, stat.NumChildren)
		}
		fmt.Fprintf(&line, " %v", r)
	}
	h.lines = append(h.lines, line.String())
}

// gather notes the events that have come since. An answer follows the events before it.
func (h *history) gather(skip int) {
	for i, s := range h.sessions {
		if i != skip {
			s.round()
		}
		s.mu.Lock()
		slices.Sort(s.events) // the end of a session deletes its znodes in any order
		for _, ev := range s.events {
			h.lines = append(h.lines, fmt.Sprintf("%d hears %s", i, ev))
		}
		s.events = nil
		s.mu.Unlock()
	}
}

// path is one of a few, so that operations meet.
func (h *history) path() string {
	p := []string{h.root}
	for range 1 + h.rnd.IntN(2) {
		p = append(p, "ab"[h.rnd.IntN(2):][:1])
	}
	return strings.Join(p, "/")
}

func (h *history) version() int32 { return int32(h.rnd.IntN(4)) - 1 }

func (h *history) data() []byte { return make([]byte, h.rnd.IntN(4)) }

// step makes one operation of one client.
func (h *history) step() {
	i := h.rnd.IntN(len(h.sessions))
	s, path := h.sessions[i], h.path()
	acl := zk.WorldACL(zk.PermAll)
	switch h.rnd.IntN(14) {
	case 0, 1, 2:
		flags := []int32{0, 0, zk.FlagEphemeral, zk.FlagSequence, zk.FlagEphemeral | zk.FlagSequence}[h.rnd.IntN(5)]
		name, err := s.conn.Create(path, h.data(), flags, acl)
		h.note(i, fmt.Sprintf("create %s flags %d", path, flags), name, err)
	case 3, 4:
		v := h.version()
		h.note(i, fmt.Sprintf("delete %s version %d", path, v), s.conn.Delete(path, v))
	case 5:
		v := h.version()
		stat, err := s.conn.Set(path, h.data(), v)
		h.note(i, fmt.Sprintf("set %s version %d", path, v), known(stat, err), err)
	case 6:
		data, stat, fired, err := s.conn.GetW(path)
		s.watched(fired)
		h.note(i, "get and watch "+path, data, known(stat, err), err)
	case 7:
		there, stat, fired, err := s.conn.ExistsW(path)
		s.watched(fired)
		if !there {
			stat = nil
		}
		h.note(i, "exists and watch "+path, there, known(stat, err), err)
	case 8:
		names, stat, fired, err := s.conn.ChildrenW(path)
		s.watched(fired)
		slices.Sort(names)
		h.note(i, "children and watch "+path, names, known(stat, err), err)
	case 9:
		list, stat, err := s.conn.GetACL(path)
		if err != nil {
			list = nil
		}
		h.note(i, "acl of "+path, list, known(stat, err), err)
	case 10:
		name, err := s.conn.CreateContainer(path, h.data(), zk.FlagContainer, acl)
		h.note(i, "create container "+path, cmp.Or(name, "none"), err)
	case 11, 12:
		h.multi(i)
	case 13:
		h.interrupt(i)
		return
	}
	h.gather(-1)
}

// known is the Stat of an answer without an error.
func known(stat *zk.Stat, err error) *zk.Stat {
	if err != nil {
		return nil
	}
	return stat
}

// multi makes a Multi.
func (h *history) multi(i int) {
	var ops []any
	what := "multi"
	for range 1 + h.rnd.IntN(4) {
		path, v := h.path(), h.version()
		switch h.rnd.IntN(5) {
		case 0, 1:
			flags := int32(h.rnd.IntN(4))
			ops = append(ops, &zk.CreateRequest{Path: path, Data: h.data(), Acl: zk.WorldACL(zk.PermAll), Flags: flags})
			what += fmt.Sprintf(" create %s %d,", path, flags)
		case 2:
			ops = append(ops, &zk.DeleteRequest{Path: path, Version: v})
			what += fmt.Sprintf(" delete %s %d,", path, v)
		case 3:
			ops = append(ops, &zk.SetDataRequest{Path: path, Data: h.data(), Version: v})
			what += fmt.Sprintf(" set %s %d,", path, v)
		case 4:
			ops = append(ops, &zk.CheckVersionRequest{Path: path, Version: v})
			what += fmt.Sprintf(" check %s %d,", path, v)
		}
	}
	results, err := h.sessions[i].conn.Multi(ops...)
	var list []any
	for _, r := range results {
		if r.Stat != nil && r.Error == nil {
			h.note(i, "stat within", r.Stat)
		}
		list = append(list, r.String, r.Error)
	}
	h.note(i, what, append(list, err)...)
}

// interrupt takes a client away. Others go on, and then it comes back, or another session
// takes its place.
func (h *history) interrupt(i int) {
	s := h.sessions[i]
	if h.rnd.IntN(3) == 0 {
		s.conn.Close()
		h.sessions[i] = h.open()
		h.note(i, "another session", errors.New("none"))
		h.gather(-1)
		return
	}
	s.leave()
	for range h.rnd.IntN(3) {
		other, path := (i+1)%len(h.sessions), h.path()
		c := h.sessions[other].conn
		switch h.rnd.IntN(3) {
		case 0:
			_, err := c.Create(path, nil, 0, zk.WorldACL(zk.PermAll))
			h.note(other, "create meanwhile "+path, err)
		case 1:
			h.note(other, "delete meanwhile "+path, c.Delete(path, -1))
		case 2:
			_, err := c.Set(path, nil, -1)
			h.note(other, "set meanwhile "+path, err)
		}
	}
	s.back()
	h.note(i, "is back")
	s.round() // after setWatches
	h.gather(-1)
}
