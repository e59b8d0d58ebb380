package httpexchange

import (
	"bufio"
	"net"
	"net/http"
	"time"
)

// This file is what a handler does past the capture. From then on its response
// reaches the client as it is written, before the engine has settled it, and
// is not kept: repeats are told that the result is unavailable.

// frameworkWriter is Gin's: its WriteHeader only makes a note.
type frameworkWriter interface{ WriteHeaderNow() }

// stream sends what was kept so far and passes on what follows.
func (c *Capture) stream() error {
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	c.streamed = true
	c.pace.start(c.ctx, c.w)
	c.tap(c.body)
	err := c.write()
	c.body = nil
	if f, ok := c.w.(frameworkWriter); ok {
		f.WriteHeaderNow()
	}
	return err
}

// Flush implements [http.Flusher]. Where nothing outside can be flushed the
// response stays kept.
func (c *Capture) Flush() { _ = c.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (c *Capture) FlushError() error {
	switch {
	case c.hijacked:
		return http.ErrHijacked
	case c.streamed:
	case !canFlush(c.w):
		return http.ErrNotSupported
	default:
		if err := c.stream(); err != nil {
			return err
		}
	}
	return http.NewResponseController(c.w).Flush()
}

// Bypassed says that a response with this status has been written to the client
// beside the capture, and not by it. It counts as one that was streamed. A problem
// counts as a refusal that was relayed, because its code was not seen.
func (c *Capture) Bypassed(status int) {
	if c.streamed {
		return
	}
	c.streamed, c.status, c.sealed, c.body = true, status, c.w.Header().Clone(), nil
	c.unseen = isProblem(c.sealed)
}

// Hijack implements [http.Hijacker].
func (c *Capture) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if !canHijack(c.w) {
		return nil, nil, http.ErrNotSupported
	}
	if c.status != 0 && !c.streamed {
		if err := c.stream(); err != nil {
			return nil, nil, err
		}
	}
	conn, rw, err := http.NewResponseController(c.w).Hijack()
	if err != nil {
		c.w = beneath(c.w)
		return nil, nil, err
	}
	c.streamed, c.hijacked = true, true
	c.pace.stop() // the connection is the handler's
	return conn, rw, nil
}

// Push implements [http.Pusher]. What is pushed is a request of its own.
func (c *Capture) Push(target string, opts *http.PushOptions) error {
	if p, ok := c.w.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

// Unwrap lets [http.ResponseController] set deadlines. Flush and Hijack do not
// get past the capture.
func (c *Capture) Unwrap() http.ResponseWriter { return c.w }

// inform sends an informational response (RFC 9110, section 15.2) with the
// headers as they are now. It goes to the innermost writer that can be
// reached: frameworks' writers take the status for the final one. Where only
// such a writer can be reached it is dropped, as any intermediary may do.
func (c *Capture) inform(status int) {
	w := innermost(c.w)
	if _, ok := w.(frameworkWriter); ok {
		return
	}
	before := w.Header().Clone()
	replace(w.Header(), c.header)
	w.WriteHeader(status)
	replace(w.Header(), before)
}

// poison breaks the connection, or resets the stream of HTTP/2, so that the
// client does not take what was streamed so far for a whole response. A panic
// alone does not do that: a recovery middleware outside may swallow it and end
// the response as usual. Past the write deadline that cannot be sent.
func (c *Capture) poison() {
	if c.streamed && !c.hijacked {
		_ = http.NewResponseController(c.w).SetWriteDeadline(time.Unix(1, 0))
	}
}

func innermost(w http.ResponseWriter) http.ResponseWriter {
	for {
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return w
		}
		w = u.Unwrap()
	}
}

// canHijack reports whether ResponseController.Hijack would reach somebody. Gin's
// writer has the method in any case, and panics where the one inside has not.
func canHijack(w http.ResponseWriter) bool {
	for {
		w = beneath(w)
		if _, ok := w.(http.Hijacker); ok {
			return true
		}
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !ok {
			return false
		}
		w = u.Unwrap()
	}
}

// beneath is the writer that a framework's writes to, where that can be told. A
// framework's takes a hijack that has failed for a response that was written.
func beneath(w http.ResponseWriter) http.ResponseWriter {
	for {
		_, framework := w.(frameworkWriter)
		u, ok := w.(interface{ Unwrap() http.ResponseWriter })
		if !framework || !ok {
			return w
		}
		w = u.Unwrap()
	}
}

// canFlush reports whether ResponseController.Flush would reach somebody.
func canFlush(w http.ResponseWriter) bool {
	for {
		switch v := w.(type) {
		case interface{ FlushError() error }, http.Flusher:
			return true
		case interface{ Unwrap() http.ResponseWriter }:
			w = v.Unwrap()
		default:
			return false
		}
	}
}
