package main

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
)

// This file speaks ZooKeeper's protocol to one server, for questions that the
// client of package lock/zookeeper has no answer to: whether this very server
// serves, what session it grants, and what time it is there. The frames are those
// of zookeeper.jute; every number is big-endian.

// Operations, and what says that a request is of one of them.
const (
	opCreate2 = 15 // answers with the path and the Stat
	opClose   = -11

	permAll       = 31
	flagEphemeral = 1
	maxFrame      = 1 << 20
)

// probe is what one server answered.
type probe struct {
	addr          string
	err           error // it cannot be reached, or does not serve
	took          time.Duration
	granted       time.Duration
	version, mode string // "" where it does not tell
}

// probeServer opens a session at a server, which takes a quorum, and closes it.
func probeServer(ctx context.Context, addr string, session time.Duration) probe {
	p := probe{addr: addr}
	sent := time.Now()
	c, err := dialServer(ctx, addr)
	if err == nil {
		p.granted, err = c.connect(session)
		p.took = time.Since(sent)
		c.close()
	}
	if p.err = err; err == nil {
		p.version, p.mode = serverInfo(ctx, addr)
	}
	return p
}

// serverInfo asks with the four letters srvr.
func serverInfo(ctx context.Context, addr string) (version, mode string) {
	c, err := dialServer(ctx, addr)
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

// zooKeeperClock reads the leader's clock off a znode that is made below parent,
// and goes with its session.
func zooKeeperClock(ctx context.Context, addr, parent string) (clockReading, error) {
	c, err := dialServer(ctx, addr)
	if err != nil {
		return clockReading{}, err
	}
	defer c.close()
	if _, err := c.connect(10 * time.Second); err != nil {
		return clockReading{}, err
	}
	sent := time.Now()
	made, err := c.create(parent + "/doctor-" + idem.NewNonce().String())
	if err != nil {
		return clockReading{}, err
	}
	return readClock("ZooKeeper "+addr, made, sent), nil
}

// wire is a connection to one server.
type wire struct {
	net.Conn

	end func()
}

// dialServer connects; everything on the connection fails when ctx ends.
func dialServer(ctx context.Context, addr string) (*wire, error) {
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	return &wire{conn, func() { stop(); _ = conn.Close() }}, nil
}

// close closes the session and the connection. Where the server does not hear
// of it the session goes by itself.
func (c *wire) close() {
	op := int32(opClose)
	_, _ = c.exchange(binary.BigEndian.AppendUint32(binary.BigEndian.AppendUint32(nil, 2), uint32(op)))
	c.end()
}

// connect opens a session and returns the time-out that is granted.
func (c *wire) connect(timeout time.Duration) (time.Duration, error) {
	req := make([]byte, 4+8, 4+8+4+8+4+16+1) // version, last zxid seen
	req = binary.BigEndian.AppendUint32(req, uint32(timeout.Milliseconds()))
	req = binary.BigEndian.AppendUint64(req, 0) // session
	req = binary.BigEndian.AppendUint32(req, 16)
	req = append(req, make([]byte, 16+1)...) // password, read-only
	answer, err := c.exchange(req)
	if errors.Is(err, io.EOF) {
		return 0, errors.New("closes the connection: it has no quorum, or takes no more clients")
	}
	if err != nil {
		return 0, err
	}
	if len(answer) < 16 || binary.BigEndian.Uint64(answer[8:]) == 0 {
		return 0, errors.New("refuses a session")
	}
	return time.Duration(binary.BigEndian.Uint32(answer[4:])) * time.Millisecond, nil
}

// create makes an ephemeral znode, and returns when that was.
func (c *wire) create(path string) (time.Time, error) {
	var req []byte
	text := func(s string) {
		req = binary.BigEndian.AppendUint32(req, uint32(len(s)))
		req = append(req, s...)
	}
	req = binary.BigEndian.AppendUint32(req, 1) // xid
	req = binary.BigEndian.AppendUint32(req, opCreate2)
	text(path)
	text("")                                    // data
	req = binary.BigEndian.AppendUint32(req, 1) // ACL, of one entry
	req = binary.BigEndian.AppendUint32(req, permAll)
	text("world")
	text("anyone")
	req = binary.BigEndian.AppendUint32(req, flagEphemeral)
	answer, err := c.exchange(req)
	if err != nil {
		return time.Time{}, err
	}
	const header, czxids = 4 + 8 + 4, 8 + 8 // xid, zxid, error; czxid, mzxid
	if len(answer) < header {
		return time.Time{}, errors.New("answer is cut off")
	}
	if code := int32(binary.BigEndian.Uint32(answer[4+8:])); code != 0 {
		return time.Time{}, fmt.Errorf("create %s: error %d", path, code)
	}
	rest, found := bytes.CutPrefix(answer[header:], append(binary.BigEndian.AppendUint32(nil, uint32(len(path))), path...))
	if !found || len(rest) < czxids+8 {
		return time.Time{}, errors.New("answer is cut off")
	}
	return time.UnixMilli(int64(binary.BigEndian.Uint64(rest[czxids:]))), nil
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
		return nil, errors.New("is not a ZooKeeper server")
	}
	frame := make([]byte, n)
	_, err := io.ReadFull(c, frame)
	return frame, err
}
