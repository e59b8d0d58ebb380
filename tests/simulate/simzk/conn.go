package simzk

import (
	"encoding/binary"
	"io"
	"net"
	"time"
)

// conn is a client of a server.
type conn struct {
	s       *server
	nc      net.Conn
	session int64    // 0 before the handshake
	queue   []*entry // requests without an answer, in order
	greeted bool     // the connect has come
	closed  bool
}

// entry is a request of a client.
type entry struct {
	c        *conn
	greeting bool // the connect itself
	timeout  time.Duration

	xid, code int32
	body      decoder
	write     bool
	done      bool
	zxid      int64
	failed    int32
	answer    encoder
}

// largest bounds a request in bytes (jute.maxbuffer).
const largest = 1 << 20

// read takes the client's requests until the connection ends.
func (c *conn) read() {
	for {
		head := make([]byte, 4)
		if _, err := io.ReadFull(c.nc, head); err != nil {
			break
		}
		n := binary.BigEndian.Uint32(head)
		if n > largest {
			break
		}
		body := make([]byte, n)
		if _, err := io.ReadFull(c.nc, body); err != nil {
			break
		}
		c.s.e.mu.Lock()
		c.handle(decoder{b: body})
		c.s.e.mu.Unlock()
	}
	c.s.e.mu.Lock()
	defer c.s.e.mu.Unlock()
	c.close()
}

// close ends the connection. The session goes on. Needs the ensemble's lock.
func (c *conn) close() {
	if c.closed {
		return
	}
	c.closed = true
	_ = c.nc.Close()
	delete(c.s.conns, c)
	for w := range c.s.watches {
		if w.c == c {
			delete(c.s.watches, w)
		}
	}
}

func (c *conn) send(e encoder) {
	_, _ = c.nc.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(e))), e...))
}

// handle takes one request.
func (c *conn) handle(d decoder) {
	if c.closed {
		return
	}
	if !c.greeted {
		c.greeted = true
		c.greet(d)
		return
	}
	if c.session == 0 { // a request before the end of the handshake
		c.close()
		return
	}
	c.touch()
	en := &entry{c: c, xid: d.int32(), code: d.int32(), body: d}
	c.queue = append(c.queue, en)
	s := c.s
	var ops []op
	switch en.code {
	case opCreate, opCreateContainer, opDelete, opSetData:
		ops = []op{en.body.op(en.code)}
	case opMulti:
		ops = en.body.multi()
	case opCloseSession:
	default:
		c.flush()
		return
	}
	en.write = true
	if en.body.bad {
		c.close()
		return
	}
	s.e.toLeader(s, func() {
		tx := s.e.prepare(c.session, s, en.code, ops)
		tx.origin = en
		s.e.propose(tx)
	})
}

// touch is a sign of life of the client.
func (c *conn) touch() {
	if c.s == c.s.e.leader {
		c.s.e.touch(c.session)
	} else {
		c.s.touched[c.session] = true
	}
}

// greet takes the connect. A client that has seen more than the server is refused.
func (c *conn) greet(d decoder) {
	d.int32()
	zxid, timeout, id := d.int64(), time.Duration(d.int32())*time.Millisecond, d.int64()
	if d.bad || zxid > c.s.zxid {
		c.close()
		return
	}
	if id == 0 {
		c.s.e.open(c.s, c, timeout)
		return
	}
	for other := range c.s.conns {
		if other != c && other.session == id {
			other.close()
		}
	}
	c.s.e.reopen(c.s, c, id)
}

// welcome answers the connect. Session 0 means that the session has expired.
func (c *conn) welcome(session int64, timeout time.Duration) {
	if c.closed {
		return
	}
	var e encoder
	e.int32(0)
	e.int32(int32(timeout / time.Millisecond))
	e.int64(session)
	e.bytes(make([]byte, 16))
	e.bool(false)
	c.session = session
	c.send(e)
	if session == 0 {
		c.close()
		return
	}
	c.touch()
}

// event sends an event of a watch.
func (c *conn) event(kind int32, path string) {
	var e encoder
	e.int32(xidEvent)
	e.int64(-1)
	e.int32(0)
	e.int32(kind)
	e.int32(3) // connected
	e.string(path)
	c.send(e)
}

// result appends the result of an operation of a write that was just applied.
func (en *entry) result(s *server, tx *txn, o *op) {
	if en.code == opMulti {
		code := o.code
		en.answer.int32(code)
		en.answer.bool(false)
		en.answer.int32(o.failed)
		if code == opError {
			en.answer.int32(o.failed)
			return
		}
	}
	switch o.code {
	case opCreate:
		en.answer.string(o.path)
	case opSetData:
		s.tree[o.path].stat(&en.answer)
	}
	if tx.code == opError {
		en.failed = o.failed
	}
}

// finish completes the answer to a write.
func (en *entry) finish(tx *txn) {
	en.done, en.zxid = true, tx.zxid
	switch {
	case tx.code == opError:
		en.failed, en.answer = tx.ops[0].failed, nil
	case en.code == opMulti:
		en.answer.int32(-1)
		en.answer.bool(true)
		en.answer.int32(-1)
	case en.code == opCloseSession:
		en.answer = nil
	}
}

// flush answers the requests at the head of the queue, in their order. A read waits for
// the writes before it.
func (c *conn) flush() {
	for len(c.queue) > 0 && !c.closed {
		en := c.queue[0]
		if en.write && !en.done {
			return
		}
		c.queue = c.queue[1:]
		if !en.write {
			en.ask()
		}
		if en.failed == codeSessionMoved { // the server ends such a connection
			c.close()
			return
		}
		var e encoder
		e.int32(en.xid)
		e.int64(en.zxid)
		e.int32(en.failed)
		if en.failed == codeOK {
			e = append(e, en.answer...)
		}
		c.send(e)
		if en.code == opCloseSession {
			c.close()
		}
	}
}
