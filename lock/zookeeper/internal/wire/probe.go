package wire

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"time"
)

// probeTimeout bounds the question to one server. Then the next server is asked.
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

// probe asks for a session of 1 ms, reads the time-out granted by the server, and closes
// the session again. If the close is lost, the session expires by itself.
func (d *Dialer) probe(ctx context.Context, server string) (time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, probeTimeout)
	defer cancel()
	conn, err := d.Connect(ctx, "tcp", server)
	if err != nil {
		return 0, err
	}
	defer func() { _ = conn.Close() }()
	defer context.AfterFunc(ctx, func() { _ = conn.SetDeadline(time.Unix(1, 0)) })()

	ask := connectRequest{Timeout: 1, Secret: 16}
	ask.Length = uint32(binary.Size(ask) - 4)
	if err := binary.Write(conn, binary.BigEndian, ask); err != nil {
		return 0, err
	}
	var answer connectAnswer
	if err := binary.Read(conn, binary.BigEndian, &answer); err != nil {
		return 0, err
	}
	if answer.Timeout <= 0 {
		return 0, errors.New("session refused")
	}
	closeSession := struct{ Length, Xid, Op int32 }{8, 1, -11}
	_ = binary.Write(conn, binary.BigEndian, closeSession)
	_, _ = io.Copy(io.Discard, io.LimitReader(conn, maxGreeting))
	return time.Duration(answer.Timeout) * time.Millisecond, nil
}
