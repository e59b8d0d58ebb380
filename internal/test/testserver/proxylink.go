package testserver

import (
	"bufio"
	"context"
	"net"
	"sync"
	"time"
)

// link is one client's connection and its counterpart at the server. In each
// direction a reader cuts the stream into frames and finds their rules,
// and a writer forwards in order. The reader runs ahead, so that requests behind
// a held one can match rules of their own.
type link struct {
	proxy *Proxy
	done  chan struct{} // closed by close
	gap   bool          // bytes were swallowed (guarded by proxy.mu)

	behind bool // its server looks as if it were stale (guarded by proxy.mu)

	mu      sync.Mutex
	closed  bool
	client  net.Conn
	server  net.Conn        // nil until dialled
	awaited map[int64]*rule // rules on replies, by request ID
	past    map[int64]bool  // requests to be answered from the past, by ID
}

// item is a frame in the queue between reader and writer.
type item struct {
	frame []byte
	rule  *rule
	end   bool      // the source has closed
	due   time.Time // zero: at once
}

func newLink(p *Proxy, client net.Conn) *link {
	return &link{proxy: p, client: client, done: make(chan struct{}), awaited: map[int64]*rule{}, past: map[int64]bool{}}
}

// run dials the server and starts the pumps.
func (l *link) run() {
	p := l.proxy
	if !p.waitWhile(l, func() bool { return p.stalled }) {
		return
	}
	ctx, cancel := context.WithTimeout(context.Background(), askTimeout)
	defer cancel()
	server, err := (&net.Dialer{}).DialContext(ctx, "tcp", p.target)
	if err != nil {
		l.closeWhenOpen(ToClient)
		return
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		server.Close()
		return
	}
	l.server = server
	l.pump(ToServer, l.client, server)
	l.pump(ToClient, server, l.client)
}

func (l *link) pump(d Direction, src, dst net.Conn) {
	queue := make(chan item, 1024)
	l.proxy.wg.Go(func() { l.read(d, src, queue) })
	l.proxy.wg.Go(func() { l.write(d, dst, queue) })
}

// read fills the queue until the source ends.
func (l *link) read(d Direction, src net.Conn, queue chan<- item) {
	r := bufio.NewReaderSize(src, 64<<10)
	for n := 0; ; {
		frame, err := l.proxy.framing.read(r)
		it := item{frame: frame, end: err != nil}
		if err == nil {
			var counted bool
			if it.rule, counted = l.examine(d, frame, n); counted {
				n++
			}
			if d == ToClient && counted {
				it.frame = l.asOfThen(frame)
			}
			if it.rule != nil && it.rule.hold {
				close(it.rule.fired)
			}
		}
		if slow := l.proxy.slowness(); slow > 0 {
			it.due = time.Now().Add(slow)
		}
		select {
		case queue <- it:
		case <-l.done:
			return
		}
		if it.end {
			return
		}
	}
}

// examine finds the rule for this very frame. counted is false for frames that the
// server sends unasked.
func (l *link) examine(d Direction, frame []byte, n int) (act *rule, counted bool) {
	if d == ToServer {
		req := l.proxy.framing.request(frame, n)
		for _, c := range l.proxy.counting() {
			c.request(l, req)
		}
		if l.proxy.stale(l, req) {
			l.mu.Lock()
			l.past[req.id] = true
			l.mu.Unlock()
		}
		r := l.proxy.take(req)
		if r == nil || !r.onReply {
			return r, true
		}
		l.mu.Lock()
		defer l.mu.Unlock()
		l.awaited[req.id] = r
		return nil, true
	}
	id, ok := l.proxy.framing.reply(frame, n)
	for _, c := range l.proxy.counting() {
		if ok {
			c.reply(l, id)
		} else {
			c.unasked(frame)
		}
	}
	if !ok {
		return nil, false
	}
	l.noteSession(frame, id)
	l.mu.Lock()
	defer l.mu.Unlock()
	act = l.awaited[id]
	delete(l.awaited, id)
	return act, true
}

// asOfThen is an answer, or an answer from the past in its place.
func (l *link) asOfThen(frame []byte) []byte {
	id, ok := l.proxy.framing.reply(frame, 1)
	l.mu.Lock()
	defer l.mu.Unlock()
	if !ok || !l.past[id] {
		return frame
	}
	delete(l.past, id)
	return l.proxy.fromThePast(frame)
}

// noteSession remembers the session of a ZooKeeper handshake.
func (l *link) noteSession(frame []byte, id int64) {
	if id != zkConnectID || len(frame) < 4 {
		return
	}
	s, err := parseConnectResponse(frame[4:])
	if err != nil || s.id == 0 {
		return
	}
	l.proxy.mu.Lock()
	defer l.proxy.mu.Unlock()
	l.proxy.session = s
}

// write empties the queue. Standing faults take effect here.
func (l *link) write(d Direction, dst net.Conn, queue <-chan item) {
	p := l.proxy
	for {
		var it item
		select {
		case it = <-queue:
		case <-l.done:
			return
		}
		if r := it.rule; r != nil && r.hold {
			select {
			case <-r.release:
			case <-l.done:
				return
			}
		}
		if !it.due.IsZero() {
			select {
			case <-time.After(time.Until(it.due)):
			case <-l.done:
				return
			}
		}
		if !p.waitWhile(l, func() bool { return p.frozen&d != 0 }) {
			return
		}
		switch {
		case it.end:
			l.closeWhenOpen(d)
			return
		case it.rule != nil && !it.rule.hold:
			l.close()
			close(it.rule.fired)
			return
		case p.swallow(l, d):
		default:
			if err := p.pass(l, d, dst, it.frame); err != nil {
				l.closeWhenOpen(Both &^ d) // the news travels back to the source
				return
			}
		}
	}
}

// closeWhenOpen closes the link as soon as the news can travel in d.
func (l *link) closeWhenOpen(d Direction) {
	p := l.proxy
	if p.waitWhile(l, func() bool { return (p.hole|p.frozen)&d != 0 }) {
		l.close()
	}
}

func (l *link) dead() bool {
	select {
	case <-l.done:
		return true
	default:
		return false
	}
}

// close ends both connections. It may be called often.
func (l *link) close() {
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return
	}
	l.closed = true
	close(l.done)
	l.client.Close()
	if l.server != nil {
		l.server.Close()
	}
	l.mu.Unlock()
	l.proxy.mu.Lock()
	delete(l.proxy.links, l)
	l.proxy.mu.Unlock()
}
