package exchange

import (
	"bufio"
	"context"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"
)

// server is the writer of a server. It notes what reaches it. Each of its errors is returned once.
type server struct {
	*httptest.ResponseRecorder
	statuses                 []int
	writes, flushes, hijacks error
	deadlines                []time.Time
	setsDeadline             func() // nil: at once
	pushed                   []string
}

func newServer() *server { return &server{ResponseRecorder: httptest.NewRecorder()} }

// status returns the last status that was written, or 0.
func (s *server) status() int {
	if len(s.statuses) == 0 {
		return 0
	}
	return s.statuses[len(s.statuses)-1]
}

func (s *server) WriteHeader(status int) {
	s.statuses = append(s.statuses, status)
	s.ResponseRecorder.WriteHeader(status)
}

func (s *server) Write(p []byte) (int, error) {
	if err := s.writes; err != nil {
		s.writes = nil
		return 0, err
	}
	return s.ResponseRecorder.Write(p)
}

func (s *server) FlushError() error {
	err := s.flushes
	s.flushes = nil
	return err
}

func (s *server) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	err := s.hijacks
	s.hijacks = nil
	return nil, nil, err
}

func (s *server) Push(target string, _ *http.PushOptions) error {
	s.pushed = append(s.pushed, target)
	return errBroken
}

func (s *server) SetWriteDeadline(t time.Time) error {
	if s.setsDeadline != nil {
		s.setsDeadline()
	}
	s.deadlines = append(s.deadlines, t)
	return nil
}

var errBroken = errors.New("the connection broke")

// around is a writer of a middleware outside.
type around struct{ http.ResponseWriter }

func (a around) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a around) Write(p []byte) (int, error) {
	return io.WriteString(a.ResponseWriter, strings.ToUpper(string(p)))
}

// noting is a framework's writer that notes statuses only.
type noting struct{ *server }

func (noting) WriteHeaderNow() {}

// flushing is a writer that flushes with an error, and in no other way.
type flushing struct{ http.ResponseWriter }

func (flushing) FlushError() error { return nil }

func (flushing) SetWriteDeadline(time.Time) error { return nil }

func writerOf(w http.ResponseWriter, limit int64) *Writer {
	c := newWriter(&Call{Writer: w, Request: usual()}, limit, 2*limit)
	c.ctx, c.flushes = context.Background(), true
	return c
}

func TestWriteHeaderTakesStatusesOfHTTP(t *testing.T) {
	t.Parallel()
	for status, valid := range map[int]bool{99: false, 100: true, 999: true, 1000: false} {
		func() {
			defer func() {
				if got := recover() == nil; got != valid {
					t.Errorf("WriteHeader(%d) without a panic: %v, want %v", status, got, valid)
				}
			}()
			writerOf(noting{newServer()}, 100).WriteHeader(status)
		}()
	}
}

func TestStatusesWithoutABody(t *testing.T) {
	t.Parallel()
	for _, status := range []int{101, 204, 304} {
		s := newServer()
		w := writerOf(s, 100)
		w.WriteHeader(status)
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrBodyNotAllowed) || s.statuses != nil {
			t.Errorf("Write() after WriteHeader(%d) = %v, and the client has %v, want %v and nothing", status, err, s.statuses, http.ErrBodyNotAllowed)
		}
	}
}

// A framework's writer would take the status for the final one.
func TestInformationalStatusNeedsAWriterThatSends(t *testing.T) {
	t.Parallel()
	s := newServer()
	if writerOf(noting{s}, 100).WriteHeader(103); s.statuses != nil {
		t.Errorf("the framework has %v, want nothing", s.statuses)
	}
	if writerOf(around{s}, 100).WriteHeader(103); !slices.Equal(s.statuses, []int{103}) {
		t.Errorf("the server has %v, want 103", s.statuses)
	}
}

// Only a response that has begun can be given up, for the first status above 499, and only
// while the client has nothing of it.
func TestRestart(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		begin  func(*Writer)
		status int
		want   bool
	}{
		"not begun":           {func(*Writer) {}, 500, false},
		"a success":           {func(w *Writer) { w.WriteHeader(201) }, 500, true},
		"a success, refused":  {func(w *Writer) { w.WriteHeader(201) }, 499, false},
		"a failure":           {func(w *Writer) { w.WriteHeader(500) }, 502, false},
		"sent in part":        {func(w *Writer) { w.Flush() }, 500, false},
		"sent by its handler": {func(w *Writer) { _, _, _ = w.Hijack() }, 500, false},
	} {
		w := writerOf(newServer(), 100)
		if tt.begin(w); w.Restart(tt.status) != tt.want {
			t.Errorf("%s: Restart(%d) = %v, want %v", name, tt.status, !tt.want, tt.want)
		}
	}
}

// What described the body of a response that was given up goes with it, unless it was set anew.
func TestHeadersOfAResponseThatStartsOver(t *testing.T) {
	t.Parallel()
	w := writerOf(newServer(), 100)
	w.Header().Set("Location", "/1")
	w.Header().Set("ETag", "1")
	w.WriteHeader(201)
	w.Header().Set("Location", "/help")
	w.WriteHeader(500)
	if h := w.final(); h.Get("Location") != "/help" || h["Etag"] != nil {
		t.Errorf("header = %v, want the new Location alone", h)
	}
}

func TestFlush(t *testing.T) {
	t.Parallel()
	t.Run("without a status is 200 for good", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		w := writerOf(s, 100)
		w.Flush()
		w.WriteHeader(404)
		if got := w.response(nil); !slices.Equal(s.statuses, []int{200}) || got.Status != 200 || !got.Omitted {
			t.Errorf("the client has %v, stored is %+v, want 200 for both, and no body stored", s.statuses, got)
		}
	})
	t.Run("leaves a problem kept", func(t *testing.T) {
		t.Parallel()
		s := newServer()
		w := writerOf(s, 100)
		w.Header().Set("Content-Type", "application/problem+json")
		w.WriteHeader(409)
		if err := w.FlushError(); err != nil || s.statuses != nil {
			t.Errorf("FlushError() = %v, and the client has %v, want nothing sent", err, s.statuses)
		}
	})
	t.Run("needs only FlushError outside", func(t *testing.T) {
		t.Parallel()
		if err := writerOf(flushing{plain{newServer()}}, 100).FlushError(); err != nil {
			t.Errorf("FlushError() = %v", err)
		}
	})
}

// What is over the limit does not pile up in memory.
func TestBodyOverTheLimitIsSentAtOnce(t *testing.T) {
	t.Parallel()
	s := newServer()
	w := writerOf(s, 3)
	for _, part := range []string{"abc", "d", "efgh"} {
		_, _ = io.WriteString(w, part)
	}
	if s.Body.String() != "abcdefg" || len(s.statuses) != 1 || len(w.body) != 0 {
		t.Errorf("the client has %q, statuses %v, kept is %q; want all but the end sent under one status", s.Body, s.statuses, w.body)
	}
}

func TestWriterReportsABrokenConnection(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		server server
		act    func(w *Writer) error
	}{
		"Write over the limit": {server{writes: errBroken}, func(w *Writer) error { _, _ = io.WriteString(w, "1"); _, err := io.WriteString(w, "234"); return err }},
		"Flush of a body":      {server{writes: errBroken}, func(w *Writer) error { _, _ = io.WriteString(w, "1"); return w.FlushError() }},
		"Flush":                {server{flushes: errBroken}, (*Writer).FlushError},
		"Hijack":               {server{hijacks: errBroken}, func(w *Writer) error { _, _, err := w.Hijack(); return err }},
		"Hijack after a body":  {server{writes: errBroken}, func(w *Writer) error { _, _ = io.WriteString(w, "1"); _, _, err := w.Hijack(); return err }},
		"Push":                 {server{}, func(w *Writer) error { return w.Push("/style.css", nil) }},
	} {
		tt.server.ResponseRecorder = httptest.NewRecorder()
		if err := tt.act(writerOf(&tt.server, 3)); !errors.Is(err, errBroken) {
			t.Errorf("%s = %v, want %v", name, err, errBroken)
		}
	}
}

func TestHijackedConnectionIsTheHandlers(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		before func(w *Writer)
		status int // stored
	}{
		"at once":         {func(*Writer) {}, 200},
		"as WebSocket":    {func(w *Writer) { w.WriteHeader(101) }, 200},
		"after a failure": {func(w *Writer) { w.WriteHeader(502) }, 502},
	} {
		w := writerOf(newServer(), 100)
		tt.before(w)
		if _, _, err := w.Hijack(); err != nil {
			t.Fatalf("%s: Hijack() = %v", name, err)
		}
		if _, err := io.WriteString(w, "x"); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("%s: Write() = %v, want %v", name, err, http.ErrHijacked)
		}
		if err := w.FlushError(); !errors.Is(err, http.ErrHijacked) {
			t.Errorf("%s: FlushError() = %v, want %v", name, err, http.ErrHijacked)
		}
		if got := w.response(nil); got.Status != tt.status || !got.Omitted {
			t.Errorf("%s: stored = %+v, want %d without a body", name, got, tt.status)
		}
	}
	w := writerOf(newServer(), 100)
	if w.WriteHeader(101); w.response(nil).Status != 101 {
		t.Errorf("stored without a hijack = %+v, want 101", w.response(nil))
	}
}

// A framework's writer takes a failed hijack for a response, and is passed by from then on. The
// writers of middleware inside the server are not.
func TestFailedHijackPassesTheFrameworkBy(t *testing.T) {
	t.Parallel()
	s := &server{ResponseRecorder: httptest.NewRecorder(), hijacks: errBroken}
	w := writerOf(around{s}, 100)
	if _, _, err := w.Hijack(); !errors.Is(err, errBroken) {
		t.Fatalf("Hijack() = %v, want %v", err, errBroken)
	}
	_, _ = io.WriteString(w, "sorry")
	if w.send(); s.Body.String() != "SORRY" {
		t.Errorf("the client has %q, want it through the middleware outside", s.Body)
	}
}

// Headers that a handler sets too late are no part of the response, also where the framework sends
// them after the handler has returned.
func TestLateHeadersAreNotSent(t *testing.T) {
	t.Parallel()
	s := newServer()
	w := newWriter(&Call{Writer: s, Buffered: true, Request: usual()}, 100, 100)
	_, _ = io.WriteString(w, "a")
	w.Header().Set("Location", "/late")
	if w.send(); s.Header().Get("Location") != "" {
		t.Errorf("header = %v, want no Location", s.Header())
	}
}
