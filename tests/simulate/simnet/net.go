// Package simnet is a network in memory, for simulations in a bubble of testing/synctest.
//
// Hosts have names. A [Net] carries the bytes of each connection in order, and late. It
// draws the delays of a direction of a connection from a stream of random numbers of its
// own. So the delays of one connection do not depend on the traffic of another.
//
// A [Block] holds traffic back for a time, as a partition or a paused host does. Nothing
// is lost then, because TCP sends it again. Cut breaks connections. Bytes that were on
// their way may still arrive.
package simnet

import (
	"context"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"net"
	"sync"
	"syscall"
	"time"
)

// Profile says how fast a network is.
type Profile struct {
	Least, Most time.Duration // the usual delay of a message
	SlowEvery   int           // one message in so many is slow; 0 means none
	Slowest     time.Duration // bounds the delay of a slow message
}

func (p Profile) draw(rnd *rand.Rand) time.Duration {
	d := p.Least + time.Duration(rnd.Int64N(int64(p.Most-p.Least)+1))
	if p.SlowEvery > 0 && rnd.IntN(p.SlowEvery) == 0 {
		d += time.Duration(rnd.Int64N(int64(p.Slowest) + 1))
	}
	return d
}

// Block holds back all traffic from one host to another while From <= now < To. An empty
// name stands for every host.
type Block struct {
	Src, Dst string
	From, To time.Time
}

// Net is a network. It is safe for concurrent use.
type Net struct {
	seed uint64

	mu      sync.Mutex
	profile Profile
	blocks  []Block
	gone    map[string]bool
	accepts map[string]func(net.Conn)
	conns   map[*Conn]bool // the dialling side of each open connection
	dials   map[string]int // by direction, for the streams of random numbers
}

// New returns a network without hosts.
func New(seed uint64, p Profile) *Net {
	return &Net{seed: seed, profile: p, gone: make(map[string]bool), accepts: make(map[string]func(net.Conn)), conns: make(map[*Conn]bool), dials: make(map[string]int)}
}

// Listen has accept called with each connection to a host. A nil function refuses
// connections, as a host does where nothing runs.
func (n *Net) Listen(host string, accept func(net.Conn)) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.accepts[host] = accept
}

// Block adds a time for which traffic is held back.
func (n *Net) Block(b Block) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.blocks = append(n.blocks, b)
}

// Gone has a host send nothing any more. What has left it still arrives. Its peers do not
// hear of it.
func (n *Net) Gone(host string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.gone[host] = true
}

func (n *Net) isGone(host string) bool {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.gone[host]
}

// Calm ends slow messages.
func (n *Net) Calm() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.profile.SlowEvery = 0
}

// delay draws the delay of one message.
func (n *Net) delay(rnd *rand.Rand) time.Duration {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.profile.draw(rnd)
}

// Clear is the first moment, not before at, when traffic may pass.
func (n *Net) Clear(at time.Time, src, dst string) time.Time {
	n.mu.Lock()
	defer n.mu.Unlock()
	for again := true; again; {
		again = false
		for _, b := range n.blocks {
			if (b.Src == "" || b.Src == src) && (b.Dst == "" || b.Dst == dst) && !at.Before(b.From) && at.Before(b.To) {
				at, again = b.To, true
			}
		}
	}
	return at
}

// Random returns the stream of random numbers with this name.
func Random(seed uint64, name string) *rand.Rand {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return rand.New(rand.NewPCG(seed, h.Sum64()))
}

// Dial connects two hosts. It takes a round trip, or ends with ctx.
func (n *Net) Dial(ctx context.Context, src, dst string) (net.Conn, error) {
	n.mu.Lock()
	name := src + ">" + dst
	n.dials[name]++
	name = fmt.Sprint(name, n.dials[name])
	n.mu.Unlock()
	there, back := newPipe(n, src, dst, name+"there"), newPipe(n, dst, src, name+"back")
	for _, p := range []*pipe{there, back} {
		if err := p.travel(ctx); err != nil {
			return nil, err
		}
	}
	n.mu.Lock()
	accept := n.accepts[dst]
	if accept == nil {
		n.mu.Unlock()
		return nil, fmt.Errorf("dial %s: %w", dst, syscall.ECONNREFUSED)
	}
	mine := &Conn{net: n, in: back, out: there, src: src, dst: dst}
	theirs := &Conn{net: n, in: there, out: back, src: dst, dst: src}
	n.conns[mine] = true
	n.mu.Unlock()
	accept(theirs)
	return mine, nil
}

// Cut breaks the connections that match. For each of them it asks whether the bytes on
// their way still arrive at the side that accepted.
func (n *Net) Cut(match func(src, dst string) bool, arrive func() bool) {
	n.mu.Lock()
	var cut []*Conn
	for c := range n.conns {
		if match(c.src, c.dst) {
			cut = append(cut, c)
			delete(n.conns, c)
		}
	}
	n.mu.Unlock()
	for _, c := range cut {
		c.in.reset()
		if arrive() {
			c.out.shut()
		} else {
			c.out.reset()
		}
	}
}
