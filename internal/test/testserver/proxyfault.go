package testserver

import (
	"fmt"
	"net"
	"time"
)

// Cut closes all present connections on both sides. Frames held or frozen in
// them are lost. New connections are accepted.
func (p *Proxy) Cut() { p.closeLinks(func(*link) bool { return true }) }

// Refuse makes new connections fail with "connection refused", or accepts them
// again. Present connections go on. Refuse panics if the port cannot be taken
// back. The reservation of the port excludes that.
func (p *Proxy) Refuse(on bool) {
	if on {
		p.mu.Lock()
		defer p.mu.Unlock()
		p.unlisten()
		return
	}
	if err := p.listen(); err != nil {
		panic(fmt.Sprintf("testserver: proxy cannot listen again: %v", err))
	}
}

// StallAccept accepts new connections but neither reads from them nor dials the
// server, so their handshake hangs. StallAccept(false) serves them late. To hang
// in the middle of the handshake, use HoldNextReply(Op(OpConnect)).
func (p *Proxy) StallAccept(on bool) { p.change(func() { p.stalled = on }) }

// BlackHole silently swallows all bytes in the given directions, and the close of
// the other side (a half-open connection). Restore closes the connections with
// lost bytes, since TCP never delivers a stream with a gap. BlackHole(0) stops
// swallowing and closes no connection.
func (p *Proxy) BlackHole(d Direction) { p.change(func() { p.hole = d }) }

// Freeze keeps back all bytes in the given directions and delivers them at
// Restore or Freeze(0), as a partition does that heals. Old writes arrive late.
func (p *Proxy) Freeze(d Direction) { p.change(func() { p.frozen = d }) }

// Slow delivers each chunk of bytes this much later than it came, in both directions.
// Slow(0) ends that, except for bytes that wait already.
func (p *Proxy) Slow(d time.Duration) { p.change(func() { p.slow = d }) }

// Limit lets so many bytes a second pass in each direction, over all connections together, as a slow link
// does. Connections take turns with pieces of a few KiB. Limit(0) ends that.
func (p *Proxy) Limit(bytesPerSecond int) { p.change(func() { p.rate = bytesPerSecond }) }

const (
	// piece is how many bytes of a frame pass at a time over a slow link.
	piece = 8 << 10
	// catchUp bounds for how long an idle link saves up.
	catchUp = 100 * time.Millisecond
)

// pass writes a frame, at the speed of the link.
func (p *Proxy) pass(l *link, d Direction, dst net.Conn, frame []byte) error {
	for p.limited() && len(frame) > 0 {
		now := frame[:min(piece, len(frame))]
		select {
		case <-time.After(time.Until(p.reserve(d, len(now)))):
		case <-l.done:
			return net.ErrClosed
		}
		if _, err := dst.Write(now); err != nil {
			return err
		}
		frame = frame[len(now):]
	}
	_, err := dst.Write(frame)
	return err
}

func (p *Proxy) limited() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.rate > 0
}

// reserve is the time at which n more bytes have passed.
func (p *Proxy) reserve(d Direction, n int) time.Time {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.rate == 0 {
		return time.Time{}
	}
	next := time.Now().Add(-catchUp) // a machine under load wakes writers late
	if p.free[d].After(next) {
		next = p.free[d]
	}
	p.free[d] = next.Add(time.Duration(n) * time.Second / time.Duration(p.rate))
	return p.free[d]
}

func (p *Proxy) slowness() time.Duration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.slow
}

// Restore ends every standing fault and forgets the single faults without a
// matching request so far. Held frames stay held until their Release.
func (p *Proxy) Restore() {
	p.change(func() {
		p.stalled, p.hole, p.frozen, p.slow, p.rate, p.rules, p.lag = false, 0, 0, 0, 0, nil, nil
	})
	p.closeLinks(func(l *link) bool { return l.gap })
	p.Refuse(false)
}

// change alters the standing faults and wakes all goroutines that wait for them.
func (p *Proxy) change(set func()) {
	p.mu.Lock()
	defer p.mu.Unlock()
	set()
	close(p.changed)
	p.changed = make(chan struct{})
}

// waitWhile blocks as long as cond holds and the link lives, and reports whether
// it still does. cond is called with the lock held.
func (p *Proxy) waitWhile(l *link, cond func() bool) bool {
	for {
		p.mu.Lock()
		blocked, changed := cond(), p.changed
		p.mu.Unlock()
		if !blocked {
			return !l.dead()
		}
		select {
		case <-changed:
		case <-l.done:
			return false
		}
	}
}

// swallow reports whether a frame falls into the black hole, and remembers that
// its link has a gap then.
func (p *Proxy) swallow(l *link, d Direction) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.hole&d == 0 {
		return false
	}
	l.gap = true
	p.swallows++
	return true
}

// closeLinks closes the links selected by pick. pick runs with the lock held.
func (p *Proxy) closeLinks(pick func(*link) bool) {
	p.mu.Lock()
	var doomed []*link
	for l := range p.links {
		if pick(l) {
			doomed = append(doomed, l)
		}
	}
	p.mu.Unlock()
	for _, l := range doomed {
		l.close()
	}
}
