package testserver

import (
	"fmt"
	"net"
	"sync"
	"testing"
	"time"
)

// Direction is the way that bytes travel through a [Proxy].
type Direction uint8

// The directions, to be combined with |.
const (
	ToServer Direction = 1 << iota
	ToClient
	Both = ToServer | ToClient
)

// Proxy is a TCP proxy on 127.0.0.1 in front of one server. It forwards all bytes
// until a fault is set, and is safe for concurrent use. It dials the server once
// for each new connection, so it finds a restarted server again.
//
// Standing faults (Refuse, StallAccept, BlackHole, Freeze, Slow, Limit, Lag) last until Restore.
// Single faults (DropNextReply, DropNextRequest, HoldNext, HoldNextReply) hit
// one request each, the oldest first.
type Proxy struct {
	addr    string
	target  string
	framing framing

	wg sync.WaitGroup // every goroutine of the proxy

	mu       sync.Mutex
	changed  chan struct{} // closed and replaced when a standing fault changes
	ln       net.Listener  // nil while connections are refused
	closed   bool
	stalled  bool
	hole     Direction
	slow     time.Duration
	rate     int                 // bytes a second; 0: no limit
	free     [Both + 1]time.Time // by direction, when the link is free
	frozen   Direction
	links    map[*link]struct{}
	rules    []*rule
	counters []*Counter // appended to only
	accepted int
	swallows int
	lag      Match // see Lag, nil if no server is stale
	lagTo    []byte
	lagged   int
	session  zkSession
}

// StartZooKeeperProxy starts a proxy that understands ZooKeeper's protocol.
// It is closed in the test's clean-up, with all its connections.
func StartZooKeeperProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	return startProxy(tb, target, zkFraming{})
}

// StartProxy starts a proxy without a protocol, such as for TLS. Single faults have
// no requests to hit.
func StartProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	return startProxy(tb, target, rawFraming{})
}

// StartRedisProxy starts a proxy that understands RESP2 and RESP3.
func StartRedisProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	return startProxy(tb, target, redisFraming{})
}

// StartTCPProxy starts a proxy for any other protocol. Each chunk of bytes is a
// request, and the next chunk from the server is its reply.
func StartTCPProxy(tb testing.TB, target string) *Proxy {
	tb.Helper()
	return startProxy(tb, target, rawFraming{})
}

func startProxy(tb testing.TB, target string, f framing) *Proxy {
	tb.Helper()
	p, held, err := launchProxy(target, f)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		p.close()
		held.release()
	})
	return p
}

func launchProxy(target string, f framing) (p *Proxy, held *ports, err error) {
	held, err = retryOnBind(1, func(nums []int) error {
		p = &Proxy{
			addr: loopback(nums[0]), target: target, framing: f,
			changed: make(chan struct{}), links: map[*link]struct{}{},
		}
		if err := p.listen(); err != nil {
			return fmt.Errorf("%w: %w", errBind, err)
		}
		return nil
	})
	if err != nil {
		return nil, nil, fmt.Errorf("testserver: proxy for %s: %w", target, err)
	}
	return p, held, nil
}

// Addr returns host:port to give to the client.
func (p *Proxy) Addr() string { return p.addr }

// Accepted returns how many connections have been accepted so far.
func (p *Proxy) Accepted() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.accepted
}

// Swallowed returns how many frames have fallen into the black hole so far.
func (p *Proxy) Swallowed() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.swallows
}

// Session returns ID and password of the last ZooKeeper session that was opened or
// resumed through the proxy. The ID is 0 if there was no session.
func (p *Proxy) Session() (id int64, passwd []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session.id, p.session.passwd
}

func (p *Proxy) listen() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed || p.ln != nil {
		return nil
	}
	ln, err := net.Listen("tcp", p.addr)
	if err != nil {
		return err
	}
	p.ln = ln
	p.wg.Go(func() { p.serve(ln) })
	return nil
}

func (p *Proxy) serve(ln net.Listener) {
	for {
		client, err := ln.Accept()
		if err != nil {
			return // closed by Refuse or close
		}
		l := newLink(p, client)
		p.mu.Lock()
		if p.closed || p.ln != ln {
			p.mu.Unlock()
			client.Close()
			return
		}
		p.links[l] = struct{}{}
		l.behind = p.lag != nil
		p.accepted++
		p.mu.Unlock()
		p.wg.Go(l.run)
	}
}

// unlisten closes the listener. The caller holds the lock.
func (p *Proxy) unlisten() {
	if p.ln != nil {
		p.ln.Close()
		p.ln = nil
	}
}

func (p *Proxy) close() {
	p.mu.Lock()
	p.closed = true
	p.unlisten()
	p.mu.Unlock()
	p.Cut()
	p.wg.Wait()
}
