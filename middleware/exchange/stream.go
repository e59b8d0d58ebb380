package exchange

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"iter"
	"net"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"
)

// This file is about responses of which a part is sent before the engine has settled the
// outcome: event streams, responses over the limit, hijacked connections. Repeats are told that
// the result is unavailable. The end of such a response is kept back until the outcome is
// settled. If the response turns out not to be the outcome, the connection is broken off, and
// the client notices. Where that is impossible, no part is sent early.

// framed reports whether a client can tell the end of a response of unknown length from a
// broken connection. HTTP/1.0 has no such end, and gateways may speak it to the servers behind
// them.
func framed(r *http.Request) bool {
	return (r.ProtoMajor == 2 || r.ProtoMajor == 1 && r.ProtoMinor >= 1) && r.Method != http.MethodConnect
}

// hasBody reports whether the response has a body. Without one it is complete with its head.
func (w *Writer) hasBody() bool { return !w.head && bodyAllowed(cmp.Or(w.status, w.implied)) }

// mayStream reports whether a part of the response may be sent before the outcome is settled.
// It may not in joined mode, where a success can still be undone, and after [Writer.Whole].
// Elsewhere it has to be possible to break the response off.
func (w *Writer) mayStream() bool {
	return !w.buffered && !w.whole && w.framed && w.hasBody() && breaksOff(w.w)
}

// breaksOff reports whether the writes to w can be ended by a deadline. A writer without Unwrap
// hides the connection. Middleware around it may end a response whose handler has panicked, as
// compressors and recoveries do, and nothing would stop it.
func breaksOff(w http.ResponseWriter) bool {
	for layer := range layers(w) {
		if outer, ok := layer.(interface{ breaksOff() bool }); ok {
			return outer.breaksOff()
		}
		if _, ok := layer.(interface{ SetWriteDeadline(time.Time) error }); ok {
			return true
		}
	}
	return false
}

func (w *Writer) breaksOff() bool { return breaksOff(w.w) }

// stream sends what was kept so far, except for its end. From now on writes go to the client. A
// client must not know the length, or it would take the last byte for the end.
func (w *Writer) stream() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	body := w.body
	w.streamed, w.body = true, nil
	w.leave()
	w.limitWrites()
	if n, err := strconv.ParseInt(w.sealed.Get("Content-Length"), 10, 64); err == nil && n >= 0 {
		w.declared = n
	}
	header := w.w.Header()
	replace(header, w.sealed)
	delete(header, "Content-Length")
	delete(header, "Transfer-Encoding")
	w.w.WriteHeader(w.status)
	if n, ok := w.w.(statusNoter); ok {
		n.WriteHeaderNow()
	}
	if len(body) == 0 {
		return nil
	}
	_, err := w.sendPart(body)
	return err
}

// leave tells the adapter that a part is about to be sent.
func (w *Writer) leave() {
	if w.early != nil {
		w.early()
	}
}

// sendPart sends p and keeps back its end, from the last byte that is not white space. A client
// that parses a document as it arrives would otherwise have the whole of it before the outcome
// is settled.
func (w *Writer) sendPart(p []byte) (int, error) {
	if w.declared >= 0 && w.sent+int64(len(p)) > w.declared {
		return 0, http.ErrContentLength
	}
	w.sent += int64(len(p))
	end := len(bytes.TrimRight(p, " \t\r\n")) - 1
	if end < 0 {
		switch {
		case len(w.tail) == 0:
			return w.w.Write(p)
		case int64(len(w.tail)+len(p)) > w.held:
			w.cut = true
		default:
			w.tail = append(w.tail, p...)
		}
		return len(p), nil
	}
	if w.cut {
		w.failed = true
		return 0, errSpace
	}
	if err := w.sendTail(); err != nil {
		return 0, err
	}
	w.tail = append(w.tail, p[end:]...)
	if end > 0 {
		if _, err := w.w.Write(p[:end]); err != nil {
			return 0, err
		}
	}
	return len(p), nil
}

// errSpace says that a response goes on after so much white space that its end could not be kept
// back.
var errSpace = errors.New("exchange: the response has more white space than the policy keeps in memory (MaxResponseHeld)")

func (w *Writer) sendTail() error {
	if len(w.tail) == 0 {
		return nil
	}
	_, err := w.w.Write(w.tail)
	w.tail = w.tail[:0]
	return err
}

// short reports whether the handler has written less than it had announced.
func (w *Writer) short() bool { return w.sent < w.declared }

// end sends what was kept back. An error of the connection is ignored, because the outcome is
// stored.
func (w *Writer) end() {
	if w.stopLimit(); w.limited {
		// The deadline counts from the end of the execution, and settling may have used it up.
		_ = http.NewResponseController(w.w).SetWriteDeadline(time.Now().Add(writeGrace))
	}
	_ = w.sendTail()
	w.putTrailers()
}

// writeGrace is how long the writes of a streamed response may still take once the
// execution's context has ended.
const writeGrace = time.Second

// limitWrites ends the writes of a streamed response soon after the execution's
// context. A client that does not read blocks them, and the blocked handler holds the
// lock and delays a shutdown. net/http lifts the deadline before the next request of
// the connection. So stopLimit waits for a deadline that is being set.
func (w *Writer) limitWrites() {
	target, done := http.NewResponseController(w.w), make(chan struct{})
	stop := context.AfterFunc(w.ctx, func() {
		defer close(done)
		_ = target.SetWriteDeadline(time.Now().Add(writeGrace))
	})
	w.stopLimit = sync.OnceFunc(func() {
		if !stop() {
			<-done
			w.limited = true
		}
	})
}

// breakOff breaks the connection, or resets the stream of HTTP/2, so that the client
// does not take a part of a response for the whole. A panic alone is not enough. A
// recovery middleware outside may swallow it and end the response as usual. After the
// write deadline the end of the response cannot be sent.
func (w *Writer) breakOff() {
	if !w.streamed || w.hijacked {
		return
	}
	target := http.NewResponseController(w.w)
	if target.SetWriteDeadline(time.Unix(1, 0)) == nil {
		return
	}
	if conn, _, err := target.Hijack(); err == nil {
		_ = conn.Close()
	}
}

// Flush implements [http.Flusher].
func (w *Writer) Flush() { _ = w.FlushError() }

// FlushError is Flush for [http.ResponseController]. It sends an event stream, and any response
// of a route with [Config.Streaming]. Other responses stay kept up to the limit of the policy,
// because most of what is flushed is short and its end is near. Then FlushError returns nil.
//
// The error is [http.ErrNotSupported] if a response that is to be sent cannot be: in joined
// mode, if no writer outside can be flushed, or if the response could not be broken off.
func (w *Writer) FlushError() error {
	switch {
	case w.hijacked:
		return http.ErrHijacked
	case w.streamed:
		if w.wantsStream() && !isDocument(w.sealed) {
			if err := w.sendTail(); err != nil {
				return err
			}
		}
		return http.NewResponseController(w.w).Flush()
	case w.buffered:
		return http.ErrNotSupported
	case isProblem(w.final()): // it may be a refusal
		return nil
	case !w.wantsStream() || !w.hasBody():
		if w.status == 0 {
			w.WriteHeader(w.implied)
		}
		return nil
	case !w.mayStream() || !canFlush(w.w):
		return http.ErrNotSupported
	}
	if err := w.stream(); err != nil {
		return err
	}
	return w.FlushError()
}

// wantsStream reports whether a client waits for parts of the response.
func (w *Writer) wantsStream() bool {
	return w.flushes || mediaType(w.final()) == "text/event-stream"
}

// isDocument reports whether a response is of use only as a whole.
func isDocument(h http.Header) bool {
	t := mediaType(h)
	return slices.ContainsFunc([]string{"/json", "+json", "/xml", "+xml"}, func(s string) bool { return strings.HasSuffix(t, s) })
}

// Hijack implements [http.Hijacker]. The error is [http.ErrNotSupported] in joined mode, because
// the handler could tell its client of a success that is undone afterwards.
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	if w.buffered || w.whole {
		return nil, nil, http.ErrNotSupported
	}
	w.leave()
	// Gin's writer has the method Hijack in any case, and panics if the writer inside has not.
	if !reaches[http.Hijacker](beneath(w.w)) {
		return nil, nil, http.ErrNotSupported
	}
	if w.status != 0 && !w.streamed {
		if err := errors.Join(w.stream(), w.sendTail()); err != nil {
			return nil, nil, err
		}
	}
	conn, rw, err := http.NewResponseController(w.w).Hijack()
	if err != nil {
		w.w = beneath(w.w) // a status noter takes a failed hijack for a response
		return nil, nil, err
	}
	w.streamed, w.hijacked = true, true
	w.stopLimit() // the connection is the handler's
	return conn, rw, nil
}

// Push implements [http.Pusher]. The client requests what is pushed by itself. The error is
// [http.ErrNotSupported] in joined mode.
func (w *Writer) Push(target string, opts *http.PushOptions) error {
	if !w.whole {
		for layer := range layers(w.w) {
			if p, ok := layer.(http.Pusher); ok {
				return p.Push(target, opts)
			}
		}
	}
	return http.ErrNotSupported
}

// Writer has no Unwrap, because a writer beneath would send past it. These methods are those
// that [http.ResponseController] looks for.

// SetReadDeadline is that of the connection.
func (w *Writer) SetReadDeadline(t time.Time) error {
	return http.NewResponseController(w.w).SetReadDeadline(t)
}

// SetWriteDeadline is that of the connection.
func (w *Writer) SetWriteDeadline(t time.Time) error {
	return http.NewResponseController(w.w).SetWriteDeadline(t)
}

// EnableFullDuplex is that of the connection.
func (w *Writer) EnableFullDuplex() error { return http.NewResponseController(w.w).EnableFullDuplex() }

// inform sends an informational response (RFC 9110, section 15.2) with the current
// headers. It goes to the innermost writer, because writers of frameworks take the
// status for the final one. If only such a writer can be reached the response is
// dropped, as any intermediary may do. So it is in joined mode, because its headers may tell of
// a success.
func (w *Writer) inform(status int) {
	if w.whole {
		return
	}
	innermost := w.w
	for layer := range layers(w.w) {
		innermost = layer
	}
	if _, notes := innermost.(statusNoter); notes {
		return
	}
	before := innermost.Header().Clone()
	replace(innermost.Header(), w.header)
	innermost.WriteHeader(status)
	replace(innermost.Header(), before)
}

// statusNoter is a writer of a framework whose WriteHeader only notes the status, as
// Gin's.
type statusNoter interface{ WriteHeaderNow() }

// layers returns w and the writers that it wraps, from the outside in.
func layers(w http.ResponseWriter) iter.Seq[http.ResponseWriter] {
	return func(yield func(http.ResponseWriter) bool) {
		for yield(w) {
			u, ok := w.(interface{ Unwrap() http.ResponseWriter })
			if !ok {
				return
			}
			w = u.Unwrap()
		}
	}
}

// beneath returns the writer that a framework's writer writes to, if it has Unwrap.
func beneath(w http.ResponseWriter) http.ResponseWriter {
	for layer := range layers(w) {
		w = layer
		if _, notes := w.(statusNoter); !notes {
			break
		}
	}
	return w
}

// reaches reports whether w, or a writer inside, is a T.
func reaches[T any](w http.ResponseWriter) bool {
	for layer := range layers(w) {
		if _, ok := layer.(T); ok {
			return true
		}
	}
	return false
}

func canFlush(w http.ResponseWriter) bool {
	return reaches[http.Flusher](w) || reaches[interface{ FlushError() error }](w)
}
