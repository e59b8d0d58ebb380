package idemgin

import (
	"bufio"
	"errors"
	"net"
	"net/http"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/middleware/internal/httpexchange"
)

var errAlreadyWritten = errors.New("idemgin: response body already written")

// unwritten is the size of a response of which nothing has been written.
const unwritten = -1

// writer is a capture with Gin's idea of a response: a status is only noted
// until something is written, and headers can be set until then.
type writer struct {
	*httpexchange.Capture
	outer    gin.ResponseWriter
	gin      *gin.Context
	status   int
	size     int
	reported int // errors in gin when the handlers, or their response, began
	outside  int // bytes that have been written to outer, but not by the handlers
}

var (
	_ gin.ResponseWriter = (*writer)(nil)
	_ http.Pusher        = (*writer)(nil)
)

func newWriter(capture *httpexchange.Capture, c *gin.Context) *writer {
	return &writer{Capture: capture, outer: c.Writer, gin: c, status: c.Writer.Status(), size: unwritten, reported: len(c.Errors), outside: c.Writer.Size()}
}

// WriteHeader notes the status. Informational ones, except 101, are sent at
// once, which Gin's own writer cannot do.
func (w *writer) WriteHeader(status int) {
	if status >= 100 && status < 200 && status != http.StatusSwitchingProtocols {
		w.Capture.WriteHeader(status)
		return
	}
	switch {
	case status <= 0:
	case !w.Written():
		w.status = status
	case status >= http.StatusInternalServerError && w.status < http.StatusInternalServerError:
		w.fail(status)
	}
}

// fail gives the response up that was begun: what recovers a panic inside answers
// so. It starts over with the status, unless some of it was sent.
func (w *writer) fail(status int) {
	w.status = status
	if w.Restart(status) {
		w.size = unwritten
	}
}

// WriteHeaderNow fixes status and headers.
func (w *writer) WriteHeaderNow() {
	if !w.Written() {
		w.size, w.reported = 0, len(w.gin.Errors)
		w.Capture.WriteHeader(w.status)
	}
}

func (w *writer) Write(p []byte) (int, error) {
	w.WriteHeaderNow()
	n, err := w.Capture.Write(p)
	w.size += n
	return n, err
}

// WriteString is Write without a copy.
func (w *writer) WriteString(s string) (int, error) {
	w.WriteHeaderNow()
	n, err := w.Capture.WriteString(s)
	w.size += n
	return n, err
}

// Status is the status noted so far.
func (w *writer) Status() int { return w.status }

// Size is the number of bytes of the body so far; -1 before anything has been
// written.
func (w *writer) Size() int { return w.size }

// Written reports whether status and headers are fixed.
func (w *writer) Written() bool { return w.size != unwritten }

// Flush gives up keeping the response.
func (w *writer) Flush() { _ = w.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (w *writer) FlushError() error {
	w.WriteHeaderNow()
	return w.Capture.FlushError()
}

// Hijack gives up keeping the response. As with Gin's own writer it is too
// late once some of the body has been written.
func (w *writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.size > 0 {
		return nil, nil, errAlreadyWritten
	}
	conn, rw, err := w.Capture.Hijack()
	if err != nil {
		w.outside = w.outer.Size() // Gin's own takes the attempt for a response
	} else if !w.Written() {
		w.size, w.reported = 0, len(w.gin.Errors)
	}
	return conn, rw, err
}

// CloseNotify tells handlers that ask for it that the client is gone; the
// context of the request does not.
func (w *writer) CloseNotify() <-chan bool { return w.outer.CloseNotify() }

// Pusher returns the connection's, or nil.
func (w *writer) Pusher() http.Pusher { return w.outer.Pusher() }

// bypassed notes a response that has been written to the client beside the capture:
// [gin.Engine.HandleContext] puts Gin's own writer back into the context.
func (w *writer) bypassed() {
	if w.outer.Size() != w.outside {
		w.Bypassed(w.outer.Status())
	}
}

// finish is what Gin does at the end of a chain. Where handlers reported an error
// and left it to others to render, the response that others see has not been
// written, and the outcome is that of a failure. So is it where the chain was
// aborted with an error after the response had been begun: Gin does that where a
// body cannot be rendered to its end, and where it recovers a panic over a
// connection that broke.
func (w *writer) finish() {
	if len(w.gin.Errors) > w.reported && w.status < http.StatusBadRequest {
		switch {
		case !w.Written():
			w.status = http.StatusInternalServerError
		case w.gin.IsAborted():
			w.fail(http.StatusInternalServerError)
		}
	}
	if !w.Written() {
		w.Capture.WriteHeader(w.status)
	}
}
