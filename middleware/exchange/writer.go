package exchange

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strings"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// Writer keeps a handler's response until the engine has settled the outcome. Like
// every [http.ResponseWriter] it belongs to the handler's goroutine, and only until the
// handler returns.
//
// The handler sees the headers that were set before it ran, and can change and delete
// them. The outside sees these changes when the response is sent. So a refusal and a
// recovered panic are answered without the handler's headers.
type Writer struct {
	w        http.ResponseWriter
	buffered bool
	header   http.Header // the handler's
	sealed   http.Header // copy of header as of WriteHeader
	status   int         // 0 until WriteHeader
	implied  int         // status of a Write without WriteHeader
	body     []byte
	limit    int64 // of the body that is stored
	held     int64 // of the body that is kept in memory, if no part of it can be sent
	whole    bool  // no part may be sent before the outcome is settled
	framed   bool  // the end of a response of unknown length can be told from a break
	head     bool  // the request is HEAD
	flushes  bool  // the route streams any response that is flushed

	overLimit bool // the body is not stored
	dropped   bool // the body was longer than held, and is gone
	streamed  bool // the response goes to w as it is written, except for its end
	elsewhere bool // the framework has the response
	hijacked  bool
	failed    bool // the response was begun and then given up with a status above 499

	doubt error // why the response may not be the handler's

	// Of a streamed response:
	tail     []byte // its end so far, which is kept back
	cut      bool   // white space at the end was left out
	sent     int64  // bytes of the body, with those of the tail
	declared int64  // Content-Length of the handler, -1 if it has none

	ctx       context.Context // the execution's, nil in a refusal, which is buffered
	early     func()          // of the call, or nil
	stopLimit func()          // see limitWrites
	limited   bool            // the writes of a streamed response have a deadline
}

var (
	_ http.ResponseWriter = (*Writer)(nil)
	_ http.Flusher        = (*Writer)(nil)
	_ http.Hijacker       = (*Writer)(nil)
	_ http.Pusher         = (*Writer)(nil)
)

func newWriter(c *Call, limit, held int64) *Writer {
	return &Writer{w: c.Writer, buffered: c.Buffered, header: c.Writer.Header().Clone(), implied: http.StatusOK,
		limit: limit, held: held, framed: framed(c.Request), head: c.Request.Method == http.MethodHead, declared: -1, stopLimit: func() {}}
}

// Header returns the handler's headers. After WriteHeader only trailers have an effect.
func (w *Writer) Header() http.Header { return w.header }

// WriteHeader sets the status. Of later calls only the first with a status above 499
// has an effect. It fails a response that was begun, as [Writer.Restart] describes.
// Informational statuses, except 101, are sent at once. It panics on an invalid status,
// as net/http does.
func (w *Writer) WriteHeader(status int) {
	if status < 100 || status > 999 {
		panic(fmt.Sprintf("invalid WriteHeader code %v", status))
	}
	if w.begun() && !w.Restart(status) {
		return
	}
	if status < 200 && status != http.StatusSwitchingProtocols {
		w.inform(status)
		return
	}
	if status >= 400 && w.ctx != nil && !serving.Calls() {
		w.Doubt(errForeign)
	}
	w.status, w.sealed = status, w.header.Clone()
}

func (w *Writer) begun() bool { return w.status != 0 || w.hijacked }

// Restart gives up a response that was begun, because its status is now above 499. That
// is how middleware answers a panic that it recovers inside. Restart returns true if
// the response starts over and the new status can be written. If a part was sent, the
// response counts as failed and is broken off at the end.
func (w *Writer) Restart(status int) bool {
	if !w.begun() || status < 500 || w.status >= 500 {
		return false
	}
	w.failed = true
	if w.streamed {
		return false
	}
	for _, name := range describesBody {
		if slices.Equal(w.header[name], w.sealed[name]) { // it described the old body
			delete(w.header, name)
		}
	}
	w.status, w.sealed, w.body, w.overLimit, w.dropped = 0, nil, nil, false, false
	return true
}

// describesBody lists the headers that are wrong once the body is gone.
var describesBody = []string{"Content-Length", "Content-Encoding", "Content-Range", "Etag", "Last-Modified", "Location"}

// Write keeps p. A body over the limit of the policy is not stored. It goes to the client as
// it is written, except for its end, if that can be broken off. If it cannot, the body is kept
// up to the second limit of the policy and then dropped.
func (w *Writer) Write(p []byte) (int, error) {
	if w.hijacked {
		return 0, http.ErrHijacked
	}
	if w.status == 0 {
		w.WriteHeader(w.implied)
	}
	if !bodyAllowed(w.status) {
		return 0, http.ErrBodyNotAllowed
	}
	size := int64(len(w.body) + len(p))
	switch {
	case w.streamed:
		return w.sendPart(p)
	case w.dropped:
		return w.discard(p)
	case size <= w.limit:
	case w.mayStream() && (size > maxProblem || !isProblem(w.final())):
		w.overLimit = true
		if err := w.stream(); err != nil {
			return 0, err
		}
		return w.sendPart(p)
	default:
		w.overLimit = true
		if !w.buffered && size > w.held {
			w.dropped, w.body = true, nil
			return w.discard(p)
		}
	}
	w.body = append(w.body, p...)
	return len(p), nil
}

// discard takes p of a body that is too long to keep. The handler need not know, because its
// operation has succeeded or failed all the same. An endless handler is told once its context
// has ended.
func (w *Writer) discard(p []byte) (int, error) {
	if err := w.ctx.Err(); err != nil {
		return 0, err
	}
	return len(p), nil
}

// Whole keeps back a response of which nothing has been sent until the outcome is settled, whatever
// its kind and its length are.
func (w *Writer) Whole() { w.whole = true }

// Bypass says that the framework itself has the response with this status and header. The
// framework has sent it past the writer, or will send it after a buffered call. Repeats get
// result-unavailable, or outcome-unknown after a failure. A problem counts as a relayed
// refusal, because its code was not seen.
func (w *Writer) Bypass(status int, header http.Header) {
	if w.streamed {
		return
	}
	w.streamed, w.elsewhere = !w.buffered, true
	w.status, w.sealed, w.body = status, header.Clone(), nil
}

// response returns the response as the engine is to know it.
func (w *Writer) response(names adapter.Names) idem.Response {
	status := w.status
	if status == 0 || w.hijacked && status == http.StatusSwitchingProtocols {
		status = http.StatusOK
	}
	switch {
	case w.streamed && w.failed:
		return idem.Response{Status: http.StatusInternalServerError}
	case w.streamed, w.elsewhere, w.overLimit:
		return idem.Response{Status: status, Omitted: true}
	}
	resp := idem.Response{Status: status, Body: slices.Clip(w.body), Header: map[string][]string{}}
	final, before := w.final(), w.w.Header()
	for name := range names {
		// A header that was there before the handler ran is there for a replay too, if it
		// still applies: "Content-Encoding: gzip" of a compressor outside. One that says what the
		// body is belongs to the stored body, whoever has set it.
		ours := slices.Contains(describing, name) || !slices.Equal(final[name], before[name])
		if values := final[name]; len(values) > 0 && ours {
			resp.Header[name] = slices.Clone(values)
		}
	}
	return resp
}

// describing lists the headers that say what a body is. They are canonical names.
var describing = []string{"Content-Disposition", "Content-Language", "Content-Type", "Etag", "Location"}

// final returns the header as it is sent.
func (w *Writer) final() http.Header {
	if w.sealed != nil {
		return w.sealed
	}
	return w.header
}

// send sends the response. An error of the connection is ignored, because the outcome
// is stored.
func (w *Writer) send() {
	replace(w.w.Header(), w.final())
	if w.status != 0 {
		w.w.WriteHeader(w.status)
	}
	if len(w.body) > 0 {
		_, _ = w.w.Write(w.body)
	}
	w.putTrailers()
}

// sendWithoutBody sends the status of a response whose body was dropped.
func (w *Writer) sendWithoutBody() {
	for _, name := range describesBody {
		delete(w.final(), name)
	}
	w.send()
}

// putTrailers hands on the trailers, which handlers set after the body. They are not
// stored.
func (w *Writer) putTrailers() {
	announced := strings.Split(strings.Join(w.sealed["Trailer"], ","), ",")
	for name, values := range w.header {
		is := func(s string) bool { return strings.EqualFold(strings.TrimSpace(s), name) }
		if strings.HasPrefix(name, http.TrailerPrefix) || slices.ContainsFunc(announced, is) {
			w.w.Header()[name] = values
		}
	}
}

// replace makes dst equal to src without replacing the map. It leaves out the mark of a stored
// outcome. A handler that forwards the answer of another service may have that of a record there,
// and its own outcome can still be in doubt.
func replace(dst, src http.Header) {
	clear(dst)
	maps.Copy(dst, src)
	maps.DeleteFunc(dst, func(name string, _ []string) bool { return strings.EqualFold(name, ReplayedHeader) })
}

// bodyAllowed is RFC 9110, section 6.4.1.
func bodyAllowed(status int) bool {
	return status >= 200 && status != http.StatusNoContent && status != http.StatusNotModified
}
