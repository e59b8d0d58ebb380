package exchange

import (
	"bufio"
	"context"
	"iter"
	"net"
	"net/http"
	"sync"
	"time"
)

// This file is about responses that are not kept. A handler that flushes, hijacks the
// connection or writes more than the limit has its response sent as it is written,
// before the engine has settled the outcome. Repeats are told that the result is
// unavailable.

// stream sends what was kept so far. From now on writes go to the client.
func (w *Writer) stream() error {
	if w.status == 0 {
		w.WriteHeader(http.StatusOK)
	}
	w.streamed = true
	w.limitWrites()
	err := w.sendKept()
	w.body = nil
	if n, ok := w.w.(statusNoter); ok {
		n.WriteHeaderNow()
	}
	return err
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
		}
	})
}

// breakOff breaks the connection, or resets the stream of HTTP/2, so that the client
// does not take a part of a response for the whole. A panic alone is not enough. A
// recovery middleware outside may swallow it and end the response as usual. After the
// write deadline the end of the response cannot be sent.
func (w *Writer) breakOff() {
	if w.streamed && !w.hijacked {
		_ = http.NewResponseController(w.w).SetWriteDeadline(time.Unix(1, 0))
	}
}

// Flush implements [http.Flusher]. The response stays kept if no writer outside can be
// flushed, or if the call is buffered.
func (w *Writer) Flush() { _ = w.FlushError() }

// FlushError is Flush for [http.ResponseController].
func (w *Writer) FlushError() error {
	switch {
	case w.hijacked:
		return http.ErrHijacked
	case w.streamed:
	case w.buffered || !canFlush(w.w):
		return http.ErrNotSupported
	case isProblem(w.final()):
		return nil // it may be a refusal, and its end is near
	default:
		if err := w.stream(); err != nil {
			return err
		}
	}
	return http.NewResponseController(w.w).Flush()
}

// Hijack implements [http.Hijacker].
func (w *Writer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	// Gin's writer has the method Hijack in any case, and panics if the writer inside has not.
	if w.buffered || !reaches[http.Hijacker](beneath(w.w)) {
		return nil, nil, http.ErrNotSupported
	}
	if w.status != 0 && !w.streamed {
		if err := w.stream(); err != nil {
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

// Push implements [http.Pusher]. The client requests what is pushed by itself.
func (w *Writer) Push(target string, opts *http.PushOptions) error {
	if p, ok := w.w.(http.Pusher); ok {
		return p.Push(target, opts)
	}
	return http.ErrNotSupported
}

// Unwrap lets [http.ResponseController] set deadlines. It uses the methods of the
// writer itself to flush and hijack.
func (w *Writer) Unwrap() http.ResponseWriter { return w.w }

// inform sends an informational response (RFC 9110, section 15.2) with the current
// headers. It goes to the innermost writer, because writers of frameworks take the
// status for the final one. If only such a writer can be reached the response is
// dropped, as any intermediary may do.
func (w *Writer) inform(status int) {
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
