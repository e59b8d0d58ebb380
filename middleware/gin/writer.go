package idemgin

import (
	"bufio"
	"errors"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/middleware/exchange"
)

// unwritten is the size of a response that has not begun.
const unwritten = -1

// writer adds Gin's rules to an [exchange.Writer]. A status is only noted until
// something is written, and headers can be set until then.
type writer struct {
	*exchange.Writer
	outer    gin.ResponseWriter
	gin      *gin.Context
	status   int
	size     int
	reported int // errors in gin when the handlers, or their response, began
	pushes   bool
	again    bool // gin is a copy, for another run
}

var (
	_ gin.ResponseWriter = (*writer)(nil)
	_ http.Pusher        = (*writer)(nil)
)

func newWriter(w *exchange.Writer, c *gin.Context, outer gin.ResponseWriter) *writer {
	return &writer{Writer: w, outer: outer, gin: c, status: outer.Status(), size: unwritten, reported: len(c.Errors), pushes: outer.Pusher() != nil}
}

// WriteHeader notes the status. Gin's own writer cannot send informational statuses.
// This one sends them at once, except 101.
func (w *writer) WriteHeader(status int) {
	switch {
	case status >= 100 && status < 200 && status != http.StatusSwitchingProtocols:
		w.Writer.WriteHeader(status)
	case status <= 0:
	case !w.Written():
		w.status = status
	case status >= http.StatusInternalServerError && w.status < http.StatusInternalServerError:
		w.fail(status)
	}
}

// fail gives up a response that was begun. Middleware that recovers a panic inside
// answers in this way. The response starts over unless a part of it was sent.
func (w *writer) fail(status int) {
	w.status = status
	if w.Restart(status) {
		w.size = unwritten
	}
}

// WriteHeaderNow fixes status and headers.
func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.begin()
		w.Writer.WriteHeader(w.status)
	}
}

func (w *writer) begin() { w.size, w.reported = 0, len(w.gin.Errors) }

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.Writer.Write(p)
	w.size += n
	return n, err
}

func (w *writer) WriteString(s string) (int, error) { return w.Write([]byte(s)) }

// Status returns the status noted so far.
func (w *writer) Status() int { return w.status }

// Size returns the number of bytes of the body so far, and -1 before the response has
// begun.
func (w *writer) Size() int { return w.size }

// Written reports whether status and headers are fixed.
func (w *writer) Written() bool { return w.size != unwritten }

// Flush sends the response as it is written from now on.
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (w *writer) FlushError() error {
	w.WriteHeaderNow()
	return w.Writer.FlushError()
}

// Hijack hands over the connection. As with Gin's own writer it is too late once a part
// of the body has been written.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.size > 0 {
		return nil, nil, errors.New("idemgin: response body already written")
	}
	conn, rw, err := w.Writer.Hijack()
	if err == nil && !w.Written() {
		w.begin()
	}
	return conn, rw, err
}

// CloseNotify tells a handler that the client is gone. The context of the request does
// not.
func (w *writer) CloseNotify() <-chan bool { return w.outer.CloseNotify() }

// Pusher returns nil if the connection has none.
func (w *writer) Pusher() http.Pusher {
	if !w.pushes {
		return nil
	}
	return w
}

// finish ends the response as Gin does at the end of a chain.
//
// The outcome is a failure if handlers reported an error and left the answer to
// middleware outside. It is a failure too if the chain was aborted with an error after
// the response had been begun. Gin does that if it cannot render a body to its end, and
// when it recovers a panic over a connection that broke.
func (w *writer) finish() {
	if len(w.gin.Errors) > w.reported && w.status < http.StatusBadRequest {
		switch {
		case !w.Written():
			w.status = http.StatusInternalServerError
		case aborted(w.gin, w.again):
			w.fail(http.StatusInternalServerError)
		}
	}
	if !w.Written() {
		w.Writer.WriteHeader(w.status)
	}
}
