package zookeeper

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// defaultTick is the tickTime of ZooKeeper's sample configuration.
const defaultTick = 2 * time.Second

// tickFor chooses the tick for a session that the servers granted: the one that is
// configured, else the default where the session leaves room for it, else what the
// servers tell.
func (c *Config) tickFor(ctx context.Context, granted time.Duration) (time.Duration, error) {
	switch {
	case c.TickTime != 0:
		return c.TickTime, nil
	case checkTimeout(granted, defaultTick) == nil:
		return defaultTick, nil
	}
	least, err := c.leastSession(ctx)
	return min(defaultTick, least/2), err
}

// probeTimeout bounds the question to one server, so that the next is asked.
const probeTimeout = 2 * time.Second

// leastSession is the shortest session that the first server to answer grants.
func (c *Config) leastSession(ctx context.Context) (time.Duration, error) {
	failed := errors.New("no server told its shortest session")
	for _, server := range c.Servers {
		least, err := c.probe(ctx, server)
		if err == nil {
			return least, nil
		}
		failed = fmt.Errorf("%w; %s: %w", failed, server, err)
	}
	return 0, failed
}

func (c *Config) probe(ctx context.Context, server string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := c.connect(ctx, "tcp", server)
	if err != nil {
		return 0, err
	}
	return probeSession(ctx, conn)
}

// The frames of the probe (zookeeper.jute: ConnectRequest, ConnectResponse,
// RequestHeader).
const (
	connectRequest  = 4 + 8 + 4 + 8 + 4 + 16 + 1 // version, zxid, time-out, session, password, read-only
	connectResponse = 4 + 4 + 8                  // version, time-out, session; more follows
	closeSession    = -11
)

// probeSession asks for a session of 1 ms, reads what is granted, and closes
// the session again.
func probeSession(ctx context.Context, conn net.Conn) (time.Duration, error) {
	defer func() { _ = conn.Close() }()
	stop := context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })
	defer stop()

	ask := make([]byte, 4+connectRequest)
	binary.BigEndian.PutUint32(ask, connectRequest)
	binary.BigEndian.PutUint32(ask[4+4+8:], 1)      // ms
	binary.BigEndian.PutUint32(ask[4+4+8+4+8:], 16) // length of the empty password
	if _, err := conn.Write(ask); err != nil {
		return 0, err
	}
	var head [4 + connectResponse]byte
	if _, err := io.ReadFull(conn, head[:]); err != nil {
		return 0, err
	}
	granted := time.Duration(binary.BigEndian.Uint32(head[4+4:])) * time.Millisecond
	if granted <= 0 {
		return 0, errors.New("session refused")
	}
	bye := binary.BigEndian.AppendUint32(nil, 8)
	bye = binary.BigEndian.AppendUint32(bye, 1) // xid
	op := int32(closeSession)
	bye = binary.BigEndian.AppendUint32(bye, uint32(op))
	_, _ = conn.Write(bye) // where it is lost, the session goes by itself
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
	return granted, nil
}
