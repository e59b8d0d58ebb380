package wire

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// conn is a connection under go-zookeeper. It is greeting until the first answer has been
// read. The library shakes hands on one goroutine, and then starts those that read and
// write.
type conn struct {
	net.Conn
	t  *Transport
	in *bufio.Reader

	greeting bool
	late     *time.Timer        // ends the handshake, because the library would wait much longer
	sent     leaseclock.Instant // when the connect request was handed to the kernel
	head     [zxidEnd]byte      // of the present frame
	ready    []byte             // read from the server, and not yet by the library
	rest     int                // of the present frame, after ready
}

func newConn(nc net.Conn, t *Transport) *conn {
	c := &conn{Conn: nc, t: t, in: bufio.NewReader(nc), greeting: true}
	c.late = time.AfterFunc(t.handshake, func() { _ = nc.Close() })
	return c
}

// Write passes on the library's requests. Each call has one whole request. The first one
// is the connect, and resume changes it.
//
// The library answers a request that it could not write twice. The channel has room for
// one answer to repeated credentials and for two answers to other requests, and the
// library hangs for ever when it is full. So Write does not report a failure. It closes
// the connection, and the next Read reports it.
func (c *conn) Write(p []byte) (int, error) {
	if !c.greeting {
		if _, err := c.Conn.Write(p); err != nil {
			c.t.fail(err)
			_ = c.Close()
		}
		return len(p), nil
	}
	c.sent = c.t.now()
	n, err := c.Conn.Write(resume(p, c.t.zxid.Load()))
	if err != nil {
		err = c.t.dialer.explain(err)
		c.t.fail(err)
	}
	return n, err
}

// Read passes on the server's answers. It examines the first one, records the zxids of
// the others, and hides them from the library.
func (c *conn) Read(p []byte) (n int, err error) {
	switch {
	case len(c.ready) > 0:
	case c.rest > 0:
		n, err = c.in.Read(p[:min(len(p), c.rest)])
		c.rest -= n
	case c.greeting:
		err = c.greet()
	default:
		err = c.next()
	}
	if err != nil {
		c.t.fail(err)
		return n, err
	}
	if n == 0 {
		n = copy(p, c.ready)
		c.ready = c.ready[n:]
	}
	return n, nil
}

// next reads the head of the next frame.
func (c *conn) next() error {
	head := c.head[:]
	if _, err := io.ReadFull(c.in, head[:xidAt]); err != nil {
		return err
	}
	length := int(binary.BigEndian.Uint32(head))
	head = head[:min(xidAt+length, zxidEnd)]
	if _, err := io.ReadFull(c.in, head[xidAt:]); err != nil {
		return err
	}
	hide(head, c.t.saw)
	c.ready, c.rest = head, xidAt+length-len(head)
	return nil
}

// The first bytes of a TLS alert (RFC 8446, section 5.1). Some servers answer so to a
// client that does not speak TLS. Others close the connection.
const tlsAlert, tlsMajor = 21, 3

// greet reads the answer to the connect.
func (c *conn) greet() error {
	head := make([]byte, xidAt)
	if _, err := io.ReadFull(c.in, head); err != nil {
		return c.unanswered(err)
	}
	length := int(binary.BigEndian.Uint32(head))
	switch {
	case head[0] == tlsAlert && head[1] == tlsMajor:
		return fmt.Errorf("%w: it speaks TLS, and Config.TLS is not set", errNoZooKeeper)
	case length < binary.Size(connectAnswer{})-xidAt || length > maxGreeting:
		return fmt.Errorf("%w: its first answer would have %d bytes", errNoZooKeeper, length)
	}
	frame := make([]byte, xidAt+length)
	copy(frame, head)
	if _, err := io.ReadFull(c.in, frame[xidAt:]); err != nil {
		return c.unanswered(err)
	}
	var answer connectAnswer
	if err := binary.Read(bytes.NewReader(frame), binary.BigEndian, &answer); err != nil {
		return err
	}
	if err := c.t.admit(answer.Session, time.Duration(answer.Timeout)*time.Millisecond, c.sent); err != nil {
		return err
	}
	c.late.Stop()
	c.greeting, c.ready = false, frame
	return nil
}

// unanswered gives the likely reason why a server does not answer a connect.
func (c *conn) unanswered(err error) error {
	why := ""
	if zxid := c.t.zxid.Load(); zxid > 0 {
		why = fmt.Sprintf(" (a stale server refuses a session that has seen zxid 0x%x)", zxid)
	}
	if !c.late.Stop() {
		err = fmt.Errorf("it took longer than %v", c.t.handshake)
	}
	return fmt.Errorf("no answer to the connect%s: %w", why, c.t.dialer.explain(err))
}
