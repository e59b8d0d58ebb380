package testserver

import (
	"bytes"
	"maps"
	"sync"
)

// Counter counts what passes a [Proxy] in front of ZooKeeper.
type Counter struct {
	about []byte

	mu   sync.Mutex
	seen Traffic
	open map[*link]map[int64]bool // requests counted and not answered yet
}

// Traffic is what a [Counter] has seen.
type Traffic struct {
	Requests      map[int32]int // by opcode; a transaction is one, of OpMulti
	Notifications int           // of watches
	Unanswered    int           // requests without their reply, as yet
}

// Total is all of the traffic but the replies, of which each request has one.
func (t Traffic) Total() int {
	n := t.Notifications
	for _, times := range t.Requests {
		n += times
	}
	return n
}

// Count counts from now on what has these bytes in it: part of a path, say.
func (p *Proxy) Count(about string) *Counter {
	c := &Counter{about: []byte(about), open: map[*link]map[int64]bool{}}
	c.Reset()
	p.mu.Lock()
	defer p.mu.Unlock()
	p.counters = append(p.counters, c)
	return c
}

// Seen returns what was counted since the last Reset.
func (c *Counter) Seen() Traffic {
	c.mu.Lock()
	defer c.mu.Unlock()
	t := c.seen
	t.Requests = maps.Clone(t.Requests)
	for _, ids := range c.open {
		t.Unanswered += len(ids)
	}
	return t
}

// Reset starts again from nothing. What is unanswered stays so.
func (c *Counter) Reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen = Traffic{Requests: map[int32]int{}}
}

func (c *Counter) request(l *link, r Request) {
	if !bytes.Contains(r.Payload, c.about) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Requests[r.Op]++
	if c.open[l] == nil {
		c.open[l] = map[int64]bool{}
	}
	c.open[l][r.id] = true
}

func (c *Counter) reply(l *link, id int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.open[l], id)
}

func (c *Counter) unasked(frame []byte) {
	if !bytes.Contains(frame, c.about) {
		return
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.seen.Notifications++
}

// counting returns the counters there are.
func (p *Proxy) counting() []*Counter {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.counters
}
