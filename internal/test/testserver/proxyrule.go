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
	// Op is the ZooKeeper opcode, and 0 for Redis and unknown protocols.
	Op int32
	// Payload is the request. For ZooKeeper it has no length prefix and begins with
	// xid and opcode. For Redis it is the RESP bytes. A Match must not keep it.
	Payload []byte

	id int64
}

// Match picks a request. The proxy calls it while locked, so a Match must not call
// the proxy and must not block.
type Match func(Request) bool

// Op matches ZooKeeper requests with one of the opcodes.
func Op(codes ...int32) Match {
	return func(r Request) bool { return slices.Contains(codes, r.Op) }
}

// Contains matches requests that contain the exact bytes, such as a key, a command
// as the client spells it, or a part of a znode's path.
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
	hold    bool // keep the frame until release, or else lose it and cut

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

// Release forwards the frame and all frames queued after it. A frame that has not
// arrived yet will pass without a stop. A frame whose connection was cut is lost.
// Another call does nothing.
func (h *Hold) Release() { h.once.Do(func() { close(h.rule.release) }) }

// DropNextReply forwards the next matching request, waits for the server's
// reply, and closes the connection instead of delivering it. The request is
// applied, and the client cannot know. Then the channel is closed. It stays open
// if the connection ends before the reply.
func (p *Proxy) DropNextReply(m Match) <-chan struct{} {
	return p.add(&rule{match: m, onReply: true}).fired
}

// DropNextRequest closes the connection instead of forwarding the next matching
// request. The request is not applied, and the client cannot know. Then the channel
// is closed.
func (p *Proxy) DropNextRequest(m Match) <-chan struct{} {
	return p.add(&rule{match: m}).fired
}

// HoldNext keeps the next matching request back, and with it all later requests on
// the same connection. Release delivers it even after the client has closed, like
// the late write of a client believed dead. Several holds can be up at once, and
// requests after a held one still match.
func (p *Proxy) HoldNext(m Match) *Hold {
	return &Hold{rule: p.add(&rule{match: m, hold: true})}
}

// HoldNextReply forwards the next matching request and keeps its reply back. Once
// Held is closed, the request has been applied.
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
