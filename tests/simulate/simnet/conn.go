package simnet

import (
	"context"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"sync"
	"syscall"
	"time"
)

// pipe is one direction of a connection.
type pipe struct {
	net      *Net
	src, dst string
	rnd      *rand.Rand

	mu     sync.Mutex
	queue  []packet
	last   time.Time     // no packet arrives before an earlier one
	ended  bool          // nothing more comes after the queue
	broken bool          // nothing more comes
	gone   bool          // the reader has closed
	limit  time.Time     // of reads, or zero
	wake   chan struct{} // has room for one
}

// packet is the bytes of one write.
type packet struct {
	data []byte
	at   time.Time // when it arrives, unless traffic is blocked then
}

func newPipe(n *Net, src, dst, stream string) *pipe {
	return &pipe{net: n, src: src, dst: dst, rnd: Random(n.seed, stream), wake: make(chan struct{}, 1)}
}

// arrival is when a message that is sent now arrives. Needs mu.
func (p *pipe) arrival() time.Time {
	at := p.net.Clear(time.Now(), p.src, p.dst).Add(p.net.delay(p.rnd))
	if at.Before(p.last) {
		at = p.last
	}
	p.last = at
	return at
}

// travel waits for as long as a message takes.
func (p *pipe) travel(ctx context.Context) error {
	p.mu.Lock()
	at := p.arrival()
	p.mu.Unlock()
	for {
		at = p.net.Clear(at, p.src, p.dst)
		wait := time.Until(at)
		if wait <= 0 {
			return ctx.Err()
		}
		timer := time.NewTimer(wait)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return ctx.Err()
		}
	}
}

func (p *pipe) rouse() {
	select {
	case p.wake <- struct{}{}:
	default:
	}
}

func (p *pipe) write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	switch {
	case p.ended:
		return 0, net.ErrClosed
	case p.broken, p.gone:
		return 0, syscall.EPIPE
	case p.net.isGone(p.src):
		return len(b), nil
	}
	p.queue = append(p.queue, packet{append([]byte(nil), b...), p.arrival()})
	p.rouse()
	return len(b), nil
}

// shut ends the direction after what is on its way.
func (p *pipe) shut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.ended && !p.net.isGone(p.src) {
		p.ended = true
		p.queue = append(p.queue, packet{nil, p.arrival()})
		p.rouse()
	}
}

// reset ends the direction at once.
func (p *pipe) reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.broken, p.queue = true, nil
	p.rouse()
}

// leave is the end of the reader.
func (p *pipe) leave() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.gone, p.queue = true, nil
	p.rouse()
}

// take reads what has arrived. Without that it returns how long to wait, or 0 for ever.
func (p *pipe) take(b []byte) (n int, wait time.Duration, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	now := time.Now()
	switch {
	case p.gone:
		return 0, 0, net.ErrClosed
	case !p.limit.IsZero() && !now.Before(p.limit):
		return 0, 0, os.ErrDeadlineExceeded
	case p.broken:
		return 0, 0, syscall.ECONNRESET
	}
	if !p.limit.IsZero() {
		wait = p.limit.Sub(now)
	}
	if len(p.queue) == 0 {
		return 0, wait, nil
	}
	head := &p.queue[0]
	if head.at.Before(now) {
		head.at = now
	}
	if head.at = p.net.Clear(head.at, p.src, p.dst); head.at.After(now) {
		if left := head.at.Sub(now); wait == 0 || left < wait {
			wait = left
		}
		return 0, wait, nil
	}
	if head.data == nil {
		return 0, 0, io.EOF
	}
	n = copy(b, head.data)
	if head.data = head.data[n:]; len(head.data) == 0 {
		p.queue = p.queue[1:]
	}
	return n, 0, nil
}

func (p *pipe) read(b []byte) (int, error) {
	for {
		n, wait, err := p.take(b)
		if n > 0 || err != nil || len(b) == 0 {
			return n, err
		}
		if wait == 0 {
			<-p.wake
			continue
		}
		timer := time.NewTimer(wait)
		select {
		case <-p.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// Conn is one side of a connection.
type Conn struct {
	net      *Net
	in, out  *pipe
	src, dst string
}

var _ net.Conn = (*Conn)(nil)

// Read implements net.Conn. One goroutine may read at a time.
func (c *Conn) Read(b []byte) (int, error) { return c.in.read(b) }

// Write implements net.Conn. It never waits.
func (c *Conn) Write(b []byte) (int, error) { return c.out.write(b) }

// Close implements net.Conn.
func (c *Conn) Close() error {
	c.net.mu.Lock()
	delete(c.net.conns, c)
	c.net.mu.Unlock()
	c.out.shut()
	c.in.leave()
	return nil
}

// SetReadDeadline implements net.Conn.
func (c *Conn) SetReadDeadline(t time.Time) error {
	c.in.mu.Lock()
	defer c.in.mu.Unlock()
	c.in.limit = t
	c.in.rouse()
	return nil
}

// SetWriteDeadline implements net.Conn. Writes never wait.
func (c *Conn) SetWriteDeadline(time.Time) error { return nil }

// SetDeadline implements net.Conn.
func (c *Conn) SetDeadline(t time.Time) error { return c.SetReadDeadline(t) }

// LocalAddr implements net.Conn.
func (c *Conn) LocalAddr() net.Addr { return addr(c.src) }

// RemoteAddr implements net.Conn.
func (c *Conn) RemoteAddr() net.Addr { return addr(c.dst) }

type addr string

func (addr) Network() string  { return "simulated" }
func (a addr) String() string { return string(a) }
