package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// probeTimeout bounds the question to one server, so that the next one is asked.
const probeTimeout = 2 * time.Second

// LeastSession returns the shortest session that the first server to answer grants.
func (d *Dialer) LeastSession(ctx context.Context, servers []string) (time.Duration, error) {
	failed := errors.New("no server told its shortest session")
	for _, server := range servers {
		least, err := d.probe(ctx, server)
		if err == nil {
			return least, nil
		}
		failed = fmt.Errorf("%w; %s: %w", failed, server, err)
	}
	return 0, failed
}

func (d *Dialer) probe(ctx context.Context, server string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := d.Connect(ctx, "tcp", server)
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

// probeSession asks for a session of 1 ms, reads the time-out that the server grants,
// and closes the session again.
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
	_, _ = conn.Write(bye) // if this is lost, the session expires by itself
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, 1<<10))
	return granted, nil
}
