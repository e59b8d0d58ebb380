package server

import (
	"errors"
	"io"
	"net"
	"net/http"
	"sync"
	"time"
)

// This file is about clients that send or read slowly, or not at all. Each of them would hold a
// connection and a goroutine for as long as it likes. A time limit for the whole request, as
// http.Server has, would also end the handler of a long payment and every live page.

// Limits of a client.
const (
	bodyTimeout   = 30 * time.Second // to send a body
	answerTimeout = 30 * time.Second // to take what one write sends
)

// hurried bounds how long a client may take to send its body. net/http reads what a handler has
// left of a body before it answers, so the limit stays until the end of the body was read.
func hurried(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Body != nil && r.Body != http.NoBody {
			rc := http.NewResponseController(w)
			if rc.SetReadDeadline(time.Now().Add(limit)) == nil { // test recorders have no deadline
				r.Body = &hurriedBody{r.Body, rc}
			}
		}
		next.ServeHTTP(w, r)
	})
}

// hurriedBody lifts the deadline of its connection at the end of the body, because net/http goes on
// reading to notice that a client leaves.
type hurriedBody struct {
	io.ReadCloser

	rc *http.ResponseController
}

// Read implements [io.Reader].
func (b *hurriedBody) Read(p []byte) (int, error) {
	n, err := b.ReadCloser.Read(p)
	if errors.Is(err, io.EOF) {
		_ = b.rc.SetReadDeadline(time.Time{})
	}
	return n, err
}

// LimitWrites returns a listener for HTTP. A write to one of its connections fails if the client
// does not take it within 30 seconds, and net/http closes the connection then.
func LimitWrites(l net.Listener) net.Listener { return &impatientListener{l, answerTimeout} }

type impatientListener struct {
	net.Listener

	limit time.Duration
}

// Accept implements [net.Listener].
func (l *impatientListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return &impatientConn{Conn: c, limit: l.limit}, nil
}

// impatientConn sets a deadline for each write. A deadline that was set from outside counts if
// it is earlier.
type impatientConn struct {
	net.Conn

	limit time.Duration
	mu    sync.Mutex
	given time.Time // the deadline from outside, zero for none
}

// Write implements [net.Conn].
func (c *impatientConn) Write(p []byte) (int, error) {
	c.mu.Lock()
	until := time.Now().Add(c.limit)
	if !c.given.IsZero() && c.given.Before(until) {
		until = c.given
	}
	err := c.Conn.SetWriteDeadline(until)
	c.mu.Unlock()
	if err != nil {
		return 0, err
	}
	return c.Conn.Write(p)
}

// SetWriteDeadline implements [net.Conn].
func (c *impatientConn) SetWriteDeadline(t time.Time) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.given = t
	return c.Conn.SetWriteDeadline(t)
}

// SetDeadline implements [net.Conn].
func (c *impatientConn) SetDeadline(t time.Time) error {
	return errors.Join(c.SetReadDeadline(t), c.SetWriteDeadline(t))
}
