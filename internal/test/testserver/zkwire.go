package testserver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"strings"
	"time"
)

// fourLetters sends a four-letter command and returns the answer.
// See "The Four Letter Words" in ZooKeeper's administrator's guide.
func fourLetters(addr, word string) (string, error) {
	conn, err := net.DialTimeout("tcp", addr, askTimeout)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(askTimeout))
	if _, err := io.WriteString(conn, word); err != nil {
		return "", err
	}
	answer, err := io.ReadAll(conn)
	return string(answer), err
}

// zkMode asks for the server's role, which is standalone, leader, follower or
// observer. A server without a quorum has no role and returns an error.
func zkMode(addr string) (string, error) {
	answer, err := fourLetters(addr, "srvr")
	if err != nil {
		return "", err
	}
	for line := range strings.Lines(answer) {
		if mode, ok := strings.CutPrefix(strings.TrimSpace(line), "Mode: "); ok {
			return mode, nil
		}
	}
	return "", fmt.Errorf("%s has no mode: %q", addr, answer)
}

// LastZxid asks a ZooKeeper server for the zxid of the last transaction that it has applied.
func LastZxid(addr string) (int64, error) {
	answer, err := fourLetters(addr, "srvr")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(answer) {
		if zxid, ok := strings.CutPrefix(strings.TrimSpace(line), "Zxid: "); ok {
			return strconv.ParseInt(zxid, 0, 64)
		}
	}
	return 0, fmt.Errorf("%s has no zxid: %q", addr, answer)
}

// zkSession is what a ConnectResponse says.
type zkSession struct {
	id     int64
	passwd []byte
}

// parseConnectResponse reads a frame without its length prefix. It holds protocol
// version, time-out, session ID and password.
func parseConnectResponse(frame []byte) (zkSession, error) {
	if len(frame) < 20 {
		return zkSession{}, fmt.Errorf("connect response of %d bytes", len(frame))
	}
	s := zkSession{id: int64(binary.BigEndian.Uint64(frame[8:]))}
	n := int(int32(binary.BigEndian.Uint32(frame[16:])))
	if n < 0 || len(frame) < 20+n {
		return zkSession{}, fmt.Errorf("connect response with a password of %d bytes", n)
	}
	s.passwd = bytes.Clone(frame[20 : 20+n])
	return s, nil
}

// zkOpenAndClose opens the session, a new one if its ID is zero, and closes it.
// These two transactions need a quorum. It returns once the server has confirmed
// the closing.
func zkOpenAndClose(addr string, session zkSession) error {
	conn, err := net.DialTimeout("tcp", addr, askTimeout)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(5 * askTimeout))

	if session.passwd == nil {
		session.passwd = make([]byte, 16)
	}
	var req []byte
	req = binary.BigEndian.AppendUint32(req, 0)    // protocol version
	req = binary.BigEndian.AppendUint64(req, 0)    // last zxid seen
	req = binary.BigEndian.AppendUint32(req, 4000) // session time-out, ms
	req = binary.BigEndian.AppendUint64(req, uint64(session.id))
	req = binary.BigEndian.AppendUint32(req, uint32(len(session.passwd)))
	req = append(req, session.passwd...)
	answer, err := zkExchange(conn, req)
	if err != nil {
		return fmt.Errorf("connect: %w", err)
	}
	got, err := parseConnectResponse(answer)
	if err != nil {
		return err
	}
	if got.id == 0 {
		return fmt.Errorf("session %#x has expired", session.id)
	}
	req = binary.BigEndian.AppendUint32(nil, 1)
	closeOp := OpClose
	req = binary.BigEndian.AppendUint32(req, uint32(closeOp))
	if _, err := zkExchange(conn, req); err != nil {
		return fmt.Errorf("close session: %w", err)
	}
	return nil
}

// zkExchange sends one frame and reads one.
func zkExchange(conn net.Conn, payload []byte) ([]byte, error) {
	out := binary.BigEndian.AppendUint32(nil, uint32(len(payload)))
	if _, err := conn.Write(append(out, payload...)); err != nil {
		return nil, err
	}
	var size [4]byte
	if _, err := io.ReadFull(conn, size[:]); err != nil {
		return nil, err
	}
	n := binary.BigEndian.Uint32(size[:])
	if n > zkMaxFrame {
		return nil, errors.New("not a ZooKeeper server")
	}
	in := make([]byte, n)
	_, err := io.ReadFull(conn, in)
	return in, err
}

// KillSession ends a session through a second connection with the same ID and
// password, as Curator's KillSession does. The server deletes its ephemeral znodes.
// The first connection learns of the expiry at its next request or reconnect.
// go-zookeeper keeps the password private, so take it from [Proxy.Session].
func KillSession(addr string, id int64, passwd []byte) error {
	if err := zkOpenAndClose(addr, zkSession{id: id, passwd: passwd}); err != nil {
		return fmt.Errorf("testserver: kill session: %w", err)
	}
	return nil
}
