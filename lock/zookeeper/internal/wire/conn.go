package wire

import (
	"encoding/binary"
	"fmt"
	"net"
	"sync"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// The answer to a connect: length, protocol version, time-out, session ID. The password
// and a flag follow and are not needed here.
const (
	answerHead = 4 + 4 + 4 + 8
	answerMax  = 1 << 10 // servers send 41 bytes
)

// conn is a connection under go-zookeeper. It is greeting until the first answer has
// been read completely. Until then it keeps its own deadline. The library would set 6.7
// session time-outs for the length and no deadline for the rest.
type conn struct {
	net.Conn
	t *Transport

	repeated chan struct{} // closed when the library has repeated its watches
	once     sync.Once

	mu       sync.Mutex
	greeting bool
	sent     leaseclock.Instant // when the connect request was handed to the kernel
	head     []byte             // of the answer
	read     int                // bytes of the answer
	answers  answers            // what was read since
	greeted  time.Time          // when it was complete
	open     bool               // zxids need not be hidden any more
}

// The first bytes of a TLS alert (RFC 8446, section 5.1). Some servers answer so to a
// client that does not speak TLS. Others close the connection.
const tlsAlert, tlsMajor = 21, 3

// opSetWatches is the request by which a client repeats its watches.
const opSetWatches = 101

func newConn(nc net.Conn, t *Transport) *conn {
	return &conn{Conn: nc, t: t, greeting: true, repeated: make(chan struct{})}
}

// Write passes on what the library sends: one whole request each time, with length, xid
// and opcode first. The first request is the connect, and resume changes it.
//
// The library answers a request that it could not write twice. The channel has room for
// one answer to repeated credentials and for two answers to other requests, and the
// library hangs for ever when it is full. So Write does not report a failure. It closes
// the connection, and the next Read reports it.
func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	greeting := c.greeting
	connect := greeting && c.sent.IsZero()
	if connect {
		c.sent = c.t.now()
	}
	c.mu.Unlock()
	request := p
	if connect {
		request = resume(p, c.t.zxid.Load())
	}
	n, err := c.Conn.Write(request)
	if err != nil {
		if greeting {
			err = c.t.dialer.explain(err)
		}
		c.t.fail(err)
		if !greeting {
			_ = c.Close()
			return len(p), nil
		}
	} else if !greeting && len(p) >= 12 && binary.BigEndian.Uint32(p[8:]) == opSetWatches {
		c.once.Do(func() { close(c.repeated) })
		c.t.rewatched()
	}
	return n, err
}

// Read passes on what the server sent. It examines the first answer and records the
// zxids of the others. It hides the zxids until the library has repeated its watches.
// See answers.next. The first connection of a session is no exception: the library may
// repeat a watch there that was set while it was still starting.
func (c *conn) Read(p []byte) (int, error) {
	n, err := c.Conn.Read(p)
	c.mu.Lock()
	defer c.mu.Unlock()
	if err != nil {
		if c.greeting {
			err = fmt.Errorf("no answer to the connect%s: %w", c.t.whyRefused(), c.t.dialer.explain(err))
		}
		c.t.fail(err)
		return n, err
	}
	if c.greeting {
		if err := c.greet(p[:n]); err != nil {
			return 0, err
		}
		return n, nil
	}
	c.answers.next(p[:n], c.hides, c.t.saw)
	return n, nil
}

// hides reports whether the next answer's zxid is hidden. Needs c.mu.
func (c *conn) hides() bool {
	c.open = c.open || c.settled()
	return !c.open
}

// settled reports whether the library has repeated its watches, or has none. What the
// library did before it sent them happens before what it does with later answers.
// Needs c.mu.
func (c *conn) settled() bool {
	select {
	case <-c.repeated:
		return true
	default:
		return time.Since(c.greeted) > hiding
	}
}

// greet takes the next bytes of the answer to the connect. The library reads exactly up
// to its end. Needs c.mu.
func (c *conn) greet(p []byte) error {
	had := len(c.head)
	if want := answerHead - had; want > 0 {
		c.head = append(c.head, p[:min(want, len(p))]...)
	}
	c.read += len(p)
	if len(c.head) < 4 {
		return nil
	}
	length := int(binary.BigEndian.Uint32(c.head))
	if length < answerHead-4 || length > answerMax {
		err := fmt.Errorf("%w: its first answer would have %d bytes", errNoZooKeeper, length)
		if c.head[0] == tlsAlert && c.head[1] == tlsMajor {
			err = fmt.Errorf("%w: it speaks TLS, and Config.TLS is not set", errNoZooKeeper)
		}
		c.t.fail(err)
		return err
	}
	if had < answerHead && len(c.head) == answerHead {
		timeout := time.Duration(int32(binary.BigEndian.Uint32(c.head[8:]))) * time.Millisecond
		session := int64(binary.BigEndian.Uint64(c.head[12:]))
		if err := c.t.admit(session, timeout, c.sent); err != nil {
			return err
		}
	}
	if c.read >= 4+length {
		c.greeting, c.greeted = false, time.Now()
		return c.Conn.SetDeadline(time.Time{})
	}
	return nil
}

// SetDeadline implements net.Conn. It leaves the deadline of the greeting alone, and so
// do SetReadDeadline and SetWriteDeadline.
func (c *conn) SetDeadline(t time.Time) error { return c.unlessGreeting(t, c.Conn.SetDeadline) }

// SetReadDeadline implements net.Conn.
func (c *conn) SetReadDeadline(t time.Time) error { return c.unlessGreeting(t, c.Conn.SetReadDeadline) }

// SetWriteDeadline implements net.Conn.
func (c *conn) SetWriteDeadline(t time.Time) error {
	return c.unlessGreeting(t, c.Conn.SetWriteDeadline)
}

func (c *conn) unlessGreeting(t time.Time, set func(time.Time) error) error {
	c.mu.Lock()
	greeting := c.greeting
	c.mu.Unlock()
	if greeting {
		return nil
	}
	return set(t)
}
