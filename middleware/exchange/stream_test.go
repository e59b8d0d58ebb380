package exchange

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"testing/synctest"

	"github.com/idemkeeper/idemkeeper/idem"
)

// The end of an execution ends the writes of a stream. It leaves alone what comes after the
// handler, and a connection that the handler has taken over.
func TestDeadlineForTheWritesOfAStream(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		handler func(w *Writer, end func())
		want    int // deadlines
	}{
		"ends while it streams": {func(w *Writer, end func()) { w.Flush(); end() }, 2}, // the second for its end
		"ends before it":        {func(w *Writer, end func()) { end(); w.Flush() }, 2},
		"flushed twice":         {func(w *Writer, _ func()) { w.Flush(); w.Flush() }, 0},
		"over the limit twice": {func(w *Writer, _ func()) {
			for range 2 {
				_, _ = io.WriteString(w, strings.Repeat("x", 200))
			}
		}, 0},
		"hijacked":               {func(w *Writer, end func()) { _, _, _ = w.Hijack(); end() }, 0},
		"hijacked after a flush": {func(w *Writer, end func()) { w.Flush(); _, _, _ = w.Hijack(); end() }, 0},
		"a panic over a hijack":  {func(w *Writer, _ func()) { _, _, _ = w.Hijack(); panic(boom) }, 0},
		"a panic over a stream":  {func(w *Writer, _ func()) { w.Flush(); panic(boom) }, 1},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				s := newServer()
				stream(t, s, func(w *Writer, end context.CancelFunc) {
					tt.handler(w, func() { end(); synctest.Wait() })
				})
				synctest.Wait()
				if len(s.deadlines) != tt.want {
					t.Errorf("%d deadlines, want %d", len(s.deadlines), tt.want)
				}
			})
		})
	}
}

// A deadline that is set after the end of a request would be that of the next one.
func TestServeWaitsForADeadlineThatIsBeingSet(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		s, began, goOn, done := newServer(), make(chan struct{}), make(chan struct{}), make(chan struct{})
		s.setsDeadline = sync.OnceFunc(func() { close(began); <-goOn })
		go func() {
			defer close(done)
			stream(t, s, func(w *Writer, end context.CancelFunc) { w.Flush(); end(); <-began })
		}()
		synctest.Wait()
		select {
		case <-done:
			t.Error("Serve() has returned while the deadline is being set")
		default:
		}
		close(goOn)
		<-done
	})
}

// White space at the end is kept back in memory, up to a limit. A response that goes on after more of
// it is broken off, because a part of it is missing.
func TestWhiteSpaceBeyondTheLimit(t *testing.T) {
	t.Parallel()
	for name, rest := range map[string]string{"the end": "", "more": "[]"} {
		s := newServer()
		broken := func() (broken bool) {
			defer func() {
				err, _ := recover().(error)
				broken = errors.Is(err, http.ErrAbortHandler)
			}()
			stream(t, s, func(w *Writer, _ context.CancelFunc) {
				w.held, w.flushes = 3, true
				w.Header().Set("Content-Type", "application/json")
				_, _ = io.WriteString(w, "{}")
				w.Flush()
				for range 4 {
					if n, err := io.WriteString(w, " \n"); n != 2 || err != nil {
						t.Errorf("Write() = %d, %v", n, err)
					}
				}
				if _, err := io.WriteString(w, rest); (err != nil) != (rest != "") {
					t.Errorf("%s: Write() = %v", name, err)
				}
			})
			return false
		}()
		if broken != (rest != "") {
			t.Errorf("%s: broken off = %v", name, broken)
		}
	}
}

const boom = "the handler's panic"

// stream serves a handler whose context can be ended, and ends it after the handler.
func stream(t *testing.T, s *server, handler func(w *Writer, end context.CancelFunc)) {
	t.Helper()
	defer func() {
		if p := recover(); p != nil && p != boom {
			panic(p)
		}
	}()
	var end context.CancelFunc
	e := &scripted{do: func(ctx context.Context, _ idem.Operation, h idem.Handler) (idem.Result, error) {
		ctx, end = context.WithCancel(ctx)
		defer end()
		resp, err := h(ctx)
		return idem.Result{Response: resp}, err
	}}
	serveCall(t, e, Call{Writer: s, Next: func(w *Writer, _ *http.Request) { handler(w, end) }})
}
