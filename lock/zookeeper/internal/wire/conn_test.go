package wire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/leaseclock"
)

// greeting is a server's answer to a connect, followed by n bytes.
func greeting(session int64, timeout int32, n int) []byte {
	var b bytes.Buffer
	_ = binary.Write(&b, binary.BigEndian, connectAnswer{Length: uint32(16 + n), Timeout: timeout, Session: session})
	return append(b.Bytes(), bytes.Repeat([]byte{7}, n)...)
}

// frame reads one frame.
func frame(r io.Reader) ([]byte, error) {
	head := make([]byte, xidAt)
	if _, err := io.ReadFull(r, head); err != nil {
		return nil, err
	}
	body := make([]byte, binary.BigEndian.Uint32(head))
	_, err := io.ReadFull(r, body)
	return slices.Concat(head, body), err
}

// piped is a transport's connection to a server that a test plays.
func piped(tr *Transport, server func(c net.Conn)) *conn {
	client, far := net.Pipe()
	go func() {
		defer far.Close()
		server(far)
	}()
	return newConn(client, tr)
}

// connectFrame is the connect of the library.
var connectFrame = answerFrame(0, 5, 24)

// answering reads the connect, answers it, and then waits for the end of the connection.
func answering(answer []byte) func(net.Conn) {
	return func(c net.Conn) {
		if _, err := frame(c); err != nil {
			return
		}
		go c.Write(answer) // a part may not be read
		_, _ = io.Copy(io.Discard, c)
	}
}

func TestGreeting(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server func(net.Conn)
		zxid   int64
		says   []string // nil if the connection is good
	}{
		"as usual":                   {answering(greeting(1, 4000, 21)), 0, nil},
		"as short as can be":         {answering(greeting(1, 4000, 0)), 0, nil},
		"as long as can be":          {answering(greeting(1, 4000, maxGreeting-16)), 0, nil},
		"of an expired session":      {answering(greeting(0, 0, 21)), 0, nil},
		"too short":                  {answering([]byte{0, 0, 0, 15}), 0, []string{"no ZooKeeper server", "15 bytes"}},
		"too long":                   {answering([]byte{0, 0, 4, 1}), 0, []string{"no ZooKeeper server", "1025 bytes"}},
		"an alert of TLS":            {answering([]byte{21, 3, 3, 0, 2, 2, 80}), 0, []string{"no ZooKeeper server", "it speaks TLS"}},
		"nearly an alert":            {answering([]byte{21, 0, 0, 0}), 0, []string{"no ZooKeeper server", "352321536 bytes"}},
		"nor an alert":               {answering([]byte{22, 3, 0, 0}), 0, []string{"no ZooKeeper server", "bytes"}},
		"without a time":             {answering(greeting(1, 0, 21)), 0, []string{"time-out of 0s"}},
		"none":                       {func(c net.Conn) { _, _ = frame(c) }, 0, []string{"no answer to the connect: EOF"}},
		"none, to a later zxid":      {func(c net.Conn) { _, _ = frame(c) }, 7, []string{"no answer to the connect", "zxid 0x7"}},
		"half of one":                {func(c net.Conn) { _, _ = frame(c); _, _ = c.Write(greeting(1, 4000, 21)[:30]) }, 0, []string{"no answer to the connect: unexpected EOF"}},
		"of a server that is mute":   {answering(nil), 0, []string{"took longer than 2s"}},
		"of one that stops half-way": {answering(greeting(1, 4000, 21)[:30]), 0, []string{"took longer than 2s"}},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				clock := leaseclock.NewManual()
				tr := NewTransport(&Dialer{}, 10*time.Second, clock.Now)
				tr.saw(tt.zxid)
				sent := clock.Now()
				c := piped(tr, tt.server)
				defer c.Close()
				if _, err := c.Write(bytes.Clone(connectFrame)); err != nil {
					t.Fatalf("Write() = %v", err)
				}
				first := make([]byte, 3)
				n, err := c.Read(first)
				if tt.says != nil {
					for _, s := range tt.says {
						if err == nil || !strings.Contains(err.Error(), s) {
							t.Errorf("Read() = %v, want it to say %q", err, s)
						}
					}
					if !errors.Is(tr.Failure(), err) {
						t.Errorf("Failure() = %v, want %v", tr.Failure(), err)
					}
					return
				}
				if err != nil || n == 0 {
					t.Fatalf("Read() = %d bytes, %v", n, err)
				}
				rest := make([]byte, len(c.ready))
				time.Sleep(time.Hour) // the connection is not closed after the time of a handshake
				if _, err := io.ReadFull(c, rest); err != nil || len(first[:n])+len(rest) != xidAt+int(binary.BigEndian.Uint32(append(first[:n:n], rest...))) {
					t.Errorf("Read() = %x and %x, %v, want the whole answer", first[:n], rest, err)
				}
				if _, err := c.Write(answerFrame(1, 0, 0)); err != nil || tr.Failure() != nil {
					t.Errorf("Write() = %v, Failure() = %v", err, tr.Failure())
				}
				synctest.Wait()
				if err := c.Conn.SetDeadline(time.Time{}); err != nil {
					t.Errorf("the connection is closed: %v", err)
				}
				session, timeout, at := tr.Accepted()
				if binary.BigEndian.Uint64(append(first[:n:n], rest...)[12:]) == 0 {
					if session != 0 || tr.ctx.Err() == nil {
						t.Errorf("session %d, transport over: %v; want none for a session that has expired", session, tr.ctx.Err())
					}
				} else if session != 1 || timeout != 4*time.Second || at != sent {
					t.Errorf("Accepted() = %d, %v, %v, want session 1 of 4 s, and when the connect was sent", session, timeout, at)
				}
			})
		})
	}
}
