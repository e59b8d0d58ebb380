package httpexchange

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
)

// Capture keeps a handler's response until the engine has settled it. Like
// every [http.ResponseWriter] it belongs to the handler's goroutine and is not
// to be used after the handler has returned.
//
// Headers set before the handler ran are there for it to see, change and
// delete. Until the response is sent, nothing of that shows outside, so that a
// refusal or a recovered panic is answered without the handler's headers.
type Capture struct {
	w      http.ResponseWriter
	header http.Header // the handler's
	sealed http.Header // copy of header as of WriteHeader
	status int         // 0 until WriteHeader
	body   []byte
	limit  int64 // of body

	streamed bool   // the response goes to w as it is written
	tapped   []byte // of a problem that is streamed
	unseen   bool   // the response is a problem that was written beside the capture
	hijacked bool
	failed   bool // the response was begun, and then given up with a status above 499

	ctx  context.Context // the execution's; nil where the handler does not run in one
	pace writeLimit
}

var (
	_ http.ResponseWriter = (*Capture)(nil)
	_ http.Flusher        = (*Capture)(nil)
	_ http.Hijacker       = (*Capture)(nil)
	_ http.Pusher         = (*Capture)(nil)
	_ io.StringWriter     = (*Capture)(nil)
)

func newCapture(w http.ResponseWriter, limit int64) *Capture {
	header := w.Header().Clone()
	if header == nil {
		header = make(http.Header)
	}
	return &Capture{w: w, header: header, limit: limit}
}

// Header returns the handler's headers. After WriteHeader only trailers can be
// set.
func (c *Capture) Header() http.Header { return c.header }

// WriteHeader sets the status once; a later call does nothing, except that one
// above 499 says that the response failed after it was begun; see fail.
// Informational statuses, except 101, are sent at once. It panics on what is no
// status, as net/http does, while that can still count as the handler's failure.
func (c *Capture) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if c.begun() && !c.fail(status) {
		return
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		c.inform(status)
		return
	}
	c.status, c.sealed = status, c.header.Clone()
}

func (c *Capture) begun() bool { return c.status != 0 || c.hijacked }

// fail takes a status that comes after the response was begun. What recovers a
// panic inside answers so, and the response so far is a part of one. A status
// above 499 therefore starts the response over. Where some of it has been sent it
// cannot be taken back, and counts as failed all the same. It reports whether a
// status can be set now.
func (c *Capture) fail(status int) (again bool) {
	if status < 500 || c.status >= 500 {
		return false
	}
	c.failed = true
	if c.streamed {
		return false
	}
	for _, name := range ofBody {
		if slices.Equal(c.header[name], c.sealed[name]) {
			delete(c.header, name)
		}
	}
	c.status, c.sealed, c.body = 0, nil, nil
	return true
}

// Restart is WriteHeader for a framework that notes a status and writes it later:
// it starts a response over that has failed, and reports whether that can be done.
func (c *Capture) Restart(status int) bool { return c.begun() && c.fail(status) }

// ofBody are the headers that describe a body.
var ofBody = []string{"Content-Length", "Content-Encoding", "Content-Range", "Etag", "Last-Modified", "Location"}

// Write keeps p, or passes it through once the response is over the limit.
func (c *Capture) Write(p []byte) (int, error) {
	if pass, err := c.admit(len(p)); err != nil {
		return 0, err
	} else if pass {
		c.tap(p)
		return c.w.Write(p)
	}
	c.body = append(c.body, p...)
	return len(p), nil
}

// WriteString is Write without a copy.
func (c *Capture) WriteString(s string) (int, error) {
	if pass, err := c.admit(len(s)); err != nil {
		return 0, err
	} else if pass {
		c.tap([]byte(s))
		return io.WriteString(c.w, s)
	}
	c.body = append(c.body, s...)
	return len(s), nil
}

// admit prepares for n more bytes of body. pass says that they are not kept.
func (c *Capture) admit(n int) (pass bool, err error) {
	if c.hijacked {
		return false, http.ErrHijacked
	}
	if c.status == 0 {
		c.WriteHeader(http.StatusOK)
	}
	if !bodyAllowed(c.status) {
		return false, http.ErrBodyNotAllowed
	}
	if !c.streamed && int64(len(c.body))+int64(n) > c.limit {
		return true, c.stream()
	}
	return c.streamed, nil
}

// returned says that the handler has returned, or has panicked.
func (c *Capture) returned() { c.pace.stop() }

// finish is the response as the engine is to know it.
func (c *Capture) finish(allow headerSet) idem.Response {
	status := c.status
	if status == 0 || c.hijacked && status == http.StatusSwitchingProtocols {
		status = http.StatusOK
	}
	if c.streamed && c.failed {
		return idem.Response{Status: http.StatusInternalServerError}
	}
	if c.streamed {
		c.putTrailers()
		return idem.Response{Status: status, Omitted: true}
	}
	return idem.Response{Status: status, Header: allow.pick(c.final(), c.w.Header()), Body: slices.Clip(c.body)}
}

// final is the header as it is sent.
func (c *Capture) final() http.Header {
	if c.sealed != nil {
		return c.sealed
	}
	return c.header
}

// send writes what was kept. Errors are the connection's: there is nobody to
// tell, and the outcome is stored.
func (c *Capture) send() {
	_ = c.write()
	c.putTrailers()
}

func (c *Capture) write() error {
	replace(c.w.Header(), c.final())
	if c.status != 0 {
		c.w.WriteHeader(c.status)
	}
	if len(c.body) == 0 {
		return nil
	}
	_, err := c.w.Write(c.body)
	return err
}

// putTrailers hands on trailers, which are set after the body. They are never
// stored: a replay has none.
func (c *Capture) putTrailers() {
	if c.sealed == nil || c.hijacked {
		return
	}
	var announced []string
	for _, line := range c.sealed["Trailer"] {
		for name := range strings.SplitSeq(line, ",") {
			announced = append(announced, http.CanonicalHeaderKey(strings.TrimSpace(name)))
		}
	}
	for name, values := range c.header {
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.Contains(announced, name) {
			c.w.Header()[name] = values
		}
	}
}

// bodyAllowed is RFC 9110, section 6.4.1.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
