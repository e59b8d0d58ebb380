package testserver

import (
	"bytes"
	"math"
	"slices"
	"sync"
)

// Opcodes of ZooKeeper requests (org.apache.zookeeper.ZooDefs.OpCode).
// OpConnect is this package's own, for the handshake.
const (
	OpConnect         int32 = math.MinInt32
	OpClose           int32 = -11
	OpCreate          int32 = 1
	OpDelete          int32 = 2
	OpExists          int32 = 3
	OpGetData         int32 = 4
	OpSetData         int32 = 5
	OpGetACL          int32 = 6
	OpGetChildren     int32 = 8
	OpSync            int32 = 9
	OpPing            int32 = 11
	OpGetChildren2    int32 = 12
	OpMulti           int32 = 14
	OpCreateContainer int32 = 19
	OpAuth            int32 = 100
	OpSetWatches      int32 = 101
)

// Request is one whole request on its way to the server.
type Request struct {
	// Op is the ZooKeeper opcode; 0 for Redis and unknown protocols.
	Op int32
	// Payload is the request: for ZooKeeper without its length prefix, so it
	// begins with xid and opcode; for Redis the RESP bytes. Not to be kept.
	Payload []byte

	id int64
}

// Match picks a request. It is called with the proxy locked: it must not call
// the proxy, nor block.
type Match func(Request) bool

// Op matches ZooKeeper requests with one of the opcodes.
func Op(codes ...int32) Match {
	return func(r Request) bool { return slices.Contains(codes, r.Op) }
}

// Contains matches requests with the exact bytes anywhere: a key, a command as
// the client spells it, part of a znode's path.
func Contains(sub string) Match {
	return func(r Request) bool { return bytes.Contains(r.Payload, []byte(sub)) }
}

// All matches requests that every m matches.
func All(ms ...Match) Match {
	return func(r Request) bool {
		return !slices.ContainsFunc(ms, func(m Match) bool { return !m(r) })
	}
}

// rule is a fault that waits for its request. It fires once.
type rule struct {
	match   Match
	onReply bool // act on the request's reply, not on the request
	hold    bool // keep the frame until release; otherwise lose it and cut

	fired   chan struct{} // closed once the frame is held, or lost and the link cut
	release chan struct{} // closed by Hold.Release
}

// Hold is a frame that is, or will be, kept back in the proxy.
type Hold struct {
	rule *rule
	once sync.Once
}

// Held is closed once the frame has arrived and is kept back.
func (h *Hold) Held() <-chan struct{} { return h.rule.fired }

// Release forwards the frame and all that queued up behind it. If it has not
// arrived yet it will pass without a stop; if its connection was cut it is gone.
// Calling it again does nothing.
func (h *Hold) Release() { h.once.Do(func() { close(h.rule.release) }) }

// DropNextReply forwards the next matching request, waits for the server's
// reply, and closes the connection instead of delivering it: applied, but the
// client cannot know. The channel is closed when that has happened; it stays
// open should the connection end before the reply.
func (p *Proxy) DropNextReply(m Match) <-chan struct{} {
	return p.add(&rule{match: m, onReply: true}).fired
}

// DropNextRequest closes the connection instead of forwarding the next matching
// request: not applied, but the client cannot know. The channel is closed when
// that has happened.
func (p *Proxy) DropNextRequest(m Match) <-chan struct{} {
	return p.add(&rule{match: m}).fired
}

// HoldNext keeps the next matching request back, and with it all that its client
// sends later on the same connection. Should the client close meanwhile, Release
// still delivers: the late write of a client believed dead. Several holds can
// be up at once, and requests behind a held one still match.
func (p *Proxy) HoldNext(m Match) *Hold {
	return &Hold{rule: p.add(&rule{match: m, hold: true})}
}

// HoldNextReply forwards the next matching request and keeps its reply back:
// once Held, the request has been applied.
func (p *Proxy) HoldNextReply(m Match) *Hold {
	return &Hold{rule: p.add(&rule{match: m, hold: true, onReply: true})}
}

func (p *Proxy) add(r *rule) *rule {
	r.fired, r.release = make(chan struct{}), make(chan struct{})
	p.mu.Lock()
	defer p.mu.Unlock()
	p.rules = append(p.rules, r)
	return r
}

// take removes and returns the first rule that matches, or nil.
func (p *Proxy) take(req Request) *rule {
	p.mu.Lock()
	defer p.mu.Unlock()
	i := slices.IndexFunc(p.rules, func(r *rule) bool { return r.match(req) })
	if i < 0 {
		return nil
	}
	r := p.rules[i]
	p.rules = slices.Delete(p.rules, i, i+1)
	return r
}
