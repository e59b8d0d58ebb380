package doctor

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/cmd/idemctl/internal/servers"
	"github.com/idemkeeper/idemkeeper/idem/driver"
)

// This file speaks ZooKeeper's protocol to one server. The client of package
// lock/zookeeper cannot tell whether one particular server serves, which session it
// grants, and what its time is. The frames follow zookeeper.jute. Every number is
// big-endian.

// Operations and request IDs.
const (
	opExists  = 3
	opAuth    = 100
	xidAuth   = -4
	opCreate2 = 15 // its answer has the path and the Stat
	opClose   = -11

	permAll       = 31
	flagEphemeral = 1
	maxFrame      = 1 << 20
)

// probe holds the answers of one server.
type probe struct {
	addr          string
	err           error // the server cannot be reached or does not serve
	took          time.Duration
	granted       time.Duration
	version, mode string // "" if the server does not tell
}

// dialer connects to one server of --zookeeper at a time.
type dialer struct{ flags *servers.ZooKeeper }

// probe opens and closes a session at a server. That needs a quorum.
func (d dialer) probe(ctx context.Context, addr string) probe {
	p := probe{addr: addr}
	sent := time.Now()
	c, granted, err := d.session(ctx, addr)
	if err == nil {
		p.granted, p.took = granted, time.Since(sent)
		c.close()
	}
	if p.err = err; err == nil {
		p.version, p.mode = d.info(ctx, addr)
	}
	return p
}

// info sends the four-letter command srvr.
func (d dialer) info(ctx context.Context, addr string) (version, mode string) {
	c, err := d.dial(ctx, addr)
	if err != nil {
		return "", ""
	}
	defer c.end()
	if _, err := io.WriteString(c, "srvr"); err != nil {
		return "", ""
	}
	text, _ := io.ReadAll(io.LimitReader(c, maxFrame))
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if v, found := strings.CutPrefix(line, "Zookeeper version: "); found {
			version, _, _ = strings.Cut(v, ",")
			version, _, _ = strings.Cut(version, "-")
		}
		if m, found := strings.CutPrefix(line, "Mode: "); found {
			mode = m
		}
	}
	return version, mode
}

// clock reads the leader's clock from the creation time of an ephemeral znode
// below parent.
func (d dialer) clock(ctx context.Context, addr, parent string) (clockReading, error) {
	c, _, err := d.session(ctx, addr)
	if err != nil {
		return clockReading{}, err
	}
	defer c.close()
	sent := time.Now()
	made, err := c.create(parent + "/doctor-" + driver.NewNonce().String())
	if err != nil {
		return clockReading{}, err
	}
	return readClock("ZooKeeper "+addr, made, sent), nil
}

// firstMissing returns the first path without a znode, or "".
func (d dialer) firstMissing(ctx context.Context, addr string, paths []string) (string, error) {
	c, _, err := d.session(ctx, addr)
	if err != nil {
		return "", err
	}
	defer c.close()
	for _, path := range paths {
		if found, err := c.exists(path); err != nil || !found {
			return path, err
		}
	}
	return "", nil
}

// session opens a session at a server, with --zookeeper-auth. The caller closes
// it.
func (d dialer) session(ctx context.Context, addr string) (c *wire, granted time.Duration, err error) {
	if c, err = d.dial(ctx, addr); err != nil {
		return nil, 0, err
	}
	if granted, err = c.connect(d.flags.SessionTimeout); err != nil {
		c.end()
		return nil, 0, err
	}
	for _, cred := range d.flags.Credentials() {
		if err := c.auth(cred.Scheme, cred.Secret); err != nil {
			c.close()
			return nil, 0, err
		}
	}
	return c, granted, nil
}

// wire is a connection to one server.
type wire struct {
	net.Conn

	end func()
}

// dial connects, with --zookeeper-tls over TLS. Calls on the connection fail when ctx ends.
func (d dialer) dial(ctx context.Context, addr string) (*wire, error) {
	dial := new(net.Dialer).DialContext
	if d.flags.TLS != nil {
		dial = (&tls.Dialer{Config: d.flags.TLS}).DialContext
	}
	conn, err := dial(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return &wire{conn, func() { stop(); _ = conn.Close() }}, nil
}

// close closes the session and the connection. If the server does not get the
// request, the session times out.
func (c *wire) close() {
	op := int32(opClose)
	_, _ = c.exchange(request(2, uint32(op)))
	c.end()
}

// connect opens a session and returns its granted time-out.
func (c *wire) connect(timeout time.Duration) (time.Duration, error) {
	req := make([]byte, 4+8, 4+8+4+8+4+16+1) // version, last zxid seen
	req = binary.BigEndian.AppendUint32(req, uint32(timeout.Milliseconds()))
	req = binary.BigEndian.AppendUint64(req, 0) // session
	req = binary.BigEndian.AppendUint32(req, 16)
	req = append(req, make([]byte, 16+1)...) // password, read-only
	answer, err := c.exchange(req)
	if errors.Is(err, io.EOF) {
		return 0, errors.New("it closes the connection, because it has no quorum or takes no more clients")
	}
	if err != nil {
		return 0, err
	}
	if len(answer) < 16 || binary.BigEndian.Uint64(answer[8:]) == 0 {
		return 0, errors.New("it refuses a session")
	}
	return time.Duration(binary.BigEndian.Uint32(answer[4:])) * time.Millisecond, nil
}

// create creates an ephemeral znode and returns its creation time.
func (c *wire) create(path string) (time.Time, error) {
	req := request(1, opCreate2)
	req = text(req, path)
	req = text(req, "")                         // data
	req = binary.BigEndian.AppendUint32(req, 1) // ACL, of one entry
	req = binary.BigEndian.AppendUint32(req, permAll)
	req = text(req, "world")
	req = text(req, "anyone")
	req = binary.BigEndian.AppendUint32(req, flagEphemeral)
	code, answer, err := c.ask(req)
	if err != nil {
		return time.Time{}, err
	}
	if code != 0 {
		return time.Time{}, fmt.Errorf("create %s: error %d", path, code)
	}
	const czxids = 8 + 8 // czxid, mzxid
	rest, found := bytes.CutPrefix(answer, text(nil, path))
	if !found || len(rest) < czxids+8 {
		return time.Time{}, errors.New("answer is cut off")
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(rest[czxids:]))), nil
}

// auth gives a credential to the session.
func (c *wire) auth(scheme string, secret []byte) error {
	xid := int32(xidAuth)
	req := request(uint32(xid), opAuth)
	req = binary.BigEndian.AppendUint32(req, 0) // type
	code, _, err := c.ask(text(text(req, scheme), string(secret)))
	if err == nil && code != 0 {
		err = fmt.Errorf("--zookeeper-auth is refused: error %d", code)
	}
	return err
}

// exists reports whether there is a znode.
func (c *wire) exists(path string) (bool, error) {
	code, _, err := c.ask(append(text(request(1, opExists), path), 0)) // without a watch
	const noNode = -101
	if err == nil && code != 0 && code != noNode {
		err = fmt.Errorf("exists %s: error %d", path, code)
	}
	return code == 0, err
}

// request begins a request.
func request(xid, op uint32) []byte {
	return binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, xid), op)
}

// text appends a string or byte buffer, with its length.
func text(req []byte, s string) []byte {
	return append(binary.BigEndian.AppendUint32(req, uint32(len(s))), s...)
}

// ask sends a request, and returns the error code and body of the answer.
func (c *wire) ask(req []byte) (code int32, rest []byte, err error) {
	answer, err := c.exchange(req)
	if err != nil {
		return 0, nil, err
	}
	const header = 4 + 8 + 4 // xid, zxid, error
	if len(answer) < header {
		return 0, nil, errors.New("answer is cut off")
	}
	return int32(binary.BigEndian.Uint32(answer[4+8:])), answer[header:], nil
}

// exchange sends a frame and reads one.
func (c *wire) exchange(payload []byte) ([]byte, error) {
	if _, err := c.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(payload))), payload...)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(c, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > maxFrame {
		return nil, errors.New("it is not a ZooKeeper server")
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(c, frame)
	return frame, err
}
