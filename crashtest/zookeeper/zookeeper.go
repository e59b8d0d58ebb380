// Package crashzookeeper makes points of the requests of a ZooKeeper client, which takes a dial function. Pings are none.
//
//	zookeeper.Open(ctx, zookeeper.Config{Dial: crashzookeeper.Dial(env, nil), …})
//	zk.Connect(servers, session, zk.WithDialer(…))
//
// It reads the protocol, so TLS has to come on top of another way.
package crashzookeeper

import (
	"bufio"
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"strings"
	"sync"

	"github.com/idemkeeper/idemkeeper/crashtest"
)

// Dial wraps the connections of a dial function. nil is that of [net.Dialer].
func Dial(env *crashtest.Env, dial func(ctx context.Context, network, addr string) (net.Conn, error)) func(ctx context.Context, network, addr string) (net.Conn, error) {
	if dial == nil {
		dial = new(net.Dialer).DialContext
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		if err != nil || env == nil {
			return c, err
		}
		return &conn{Conn: c, env: env, in: bufio.NewReader(c), open: map[int32]crashtest.Passage{}}, nil
	}
}

// Operations by their numbers in the protocol. Others, such as pings and credentials, are no points.
var operations = map[int32]string{
	1: "create", 2: "delete", 3: "exists", 4: "getData", 5: "setData", 6: "getACL", 7: "setACL", 8: "getChildren",
	9: "sync", 12: "getChildren", 13: "check", 14: "multi", 15: "create", 19: "createContainer", 20: "deleteContainer", 21: "createTTL",
}

// conn sees whole requests and whole answers. The handshake comes first and has no xid.
type conn struct {
	net.Conn
	env *crashtest.Env
	in  *bufio.Reader

	mu      sync.Mutex
	greeted bool
	open    map[int32]crashtest.Passage // by xid

	ready []byte // of an answer, for the reader
	fault error
	hello bool // the answer to the handshake has been read
}

func (c *conn) Write(p []byte) (int, error) {
	c.mu.Lock()
	first := !c.greeted
	c.greeted = true
	c.mu.Unlock()
	if name, xid := nameOf(p); !first && name != "" {
		passage := c.env.Before(name)
		if passage.Cut() {
			_ = c.Close()
			return 0, net.ErrClosed
		}
		c.mu.Lock()
		c.open[xid] = passage
		c.mu.Unlock()
	}
	return c.Conn.Write(p)
}

// Read reads a whole answer, and passes it on in pieces.
func (c *conn) Read(p []byte) (int, error) {
	if c.fault != nil {
		return 0, c.fault
	}
	if len(c.ready) == 0 {
		if c.fault = c.next(); c.fault != nil {
			_ = c.Close()
			return 0, c.fault
		}
	}
	n := copy(p, c.ready)
	c.ready = c.ready[n:]
	return n, nil
}

func (c *conn) next() error {
	var size [4]byte
	if _, err := io.ReadFull(c.in, size[:]); err != nil {
		return err
	}
	frame := make([]byte, 4+binary.BigEndian.Uint32(size[:]))
	copy(frame, size[:])
	if _, err := io.ReadFull(c.in, frame[4:]); err != nil {
		return err
	}
	c.ready = frame
	if !c.hello || len(frame) < 8 {
		c.hello = true
		return nil
	}
	xid := int32(binary.BigEndian.Uint32(frame[4:]))
	c.mu.Lock()
	passage, ok := c.open[xid]
	delete(c.open, xid)
	c.mu.Unlock()
	if ok && passage.After(context.Background(), nil) {
		return io.ErrUnexpectedEOF
	}
	return nil
}

// nameOf names a request by its operation and the first part of its path.
func nameOf(frame []byte) (name string, xid int32) {
	if len(frame) < 12 {
		return "", 0
	}
	xid = int32(binary.BigEndian.Uint32(frame[4:]))
	op := operations[int32(binary.BigEndian.Uint32(frame[8:]))]
	rest := frame[12:]
	if op == "" {
		return "", xid
	}
	if op == "multi" && len(rest) > 9 {
		first := operations[int32(binary.BigEndian.Uint32(rest))]
		return strings.TrimSpace(fmt.Sprintf("multi %s %s", first, pathOf(rest[9:]))), xid
	}
	return strings.TrimSpace(op + " " + pathOf(rest)), xid
}

// pathOf is the first part of a path. The others name keys.
func pathOf(b []byte) string {
	if len(b) < 4 {
		return ""
	}
	n := int(binary.BigEndian.Uint32(b))
	if n < 2 || len(b) < 4+n {
		return ""
	}
	first, _, _ := strings.Cut(string(b[5:4+n]), "/")
	return "/" + first
}
