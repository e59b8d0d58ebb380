package exchange

import (
	"context"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// scripted is an engine that does as it is told.
type scripted struct {
	do      func(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	issue   func() (idem.Token, error) // nil: it fails
	refused []idem.Code
	joined  bool
}

func (s *scripted) Do(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error) {
	return s.do(ctx, op, h)
}

func (s *scripted) IssueToken(context.Context, string, time.Duration) (idem.Token, error) {
	if s.issue != nil {
		return s.issue()
	}
	return idem.Token{}, errors.New("secret")
}

func (s *scripted) Status(context.Context, string, idem.Key, ...*idem.Policy) (idem.Status, error) {
	return idem.Status{}, errors.New("secret")
}

func (s *scripted) ReportRefused(_ context.Context, _ string, r *idem.Refusal) {
	s.refused = append(s.refused, r.Code)
}

func (s *scripted) MayRunAgain(*idem.Operation) bool { return false }

func (s *scripted) Nested(context.Context, *idem.Operation) (bool, error) { return false, nil }

func (s *scripted) DoWithoutKey(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error) {
	return s.Do(ctx, op, h)
}
func (s *scripted) ReportUnprotected(context.Context, string) {}

func (s *scripted) ReportMisused(context.Context, error) {}

func (s *scripted) Joined() bool { return s.joined }

func answers(res idem.Result, err error) *scripted {
	return &scripted{do: func(context.Context, idem.Operation, idem.Handler) (idem.Result, error) { return res, err }}
}

// live runs the handler and answers with what it is given.
func live(res idem.Result, err error) *scripted {
	return &scripted{do: func(ctx context.Context, _ idem.Operation, h idem.Handler) (idem.Result, error) {
		resp, _ := h(ctx)
		if err == nil && !res.Replayed {
			res.Response = resp
		}
		return res, err
	}}
}

// routeOn returns a route on an engine that is a part of a test.
func routeOn(e engine, policy idem.Policy, cfg Config) (*Route, error) {
	rt, err := New(idem.MustNew(memorylock.New(), memorystore.New()), policy, cfg)
	if err == nil {
		rt.engine = e
	}
	return rt, err
}

func serve(t *testing.T, e engine, h http.HandlerFunc) *httptest.ResponseRecorder {
	t.Helper()
	x, err := routeOn(e, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/pay", strings.NewReader("{}"))
	r.Header.Set(DefaultHeader, "k1")
	w := httptest.NewRecorder()
	x.Serve(Call{Writer: w, Request: r, Route: "POST /pay",
		Next: func(c *Writer, r *http.Request) { h(c, r) }})
	return w
}

// serveCall serves a call whose request is the usual one.
func serveCall(t *testing.T, e engine, c Call) {
	t.Helper()
	rt, err := routeOn(e, idem.Policy{AllowGlobalKeys: true, MaxResponseBody: 100, InDoubt: idem.LeaveUnknown()}, Config{Streaming: true})
	if err != nil {
		t.Fatal(err)
	}
	c.Request = usual()
	rt.Serve(c)
}

// usual is the request of most tests.
func usual() *http.Request {
	r := httptest.NewRequest("POST", "/pay", strings.NewReader("{}"))
	r.Header.Set(DefaultHeader, "k1")
	return r
}

func TestRefusals(t *testing.T) {
	for _, tt := range []struct {
		err    error
		status int
		code   string
		retry  string
	}{
		{&idem.Refusal{Code: idem.CodeInProgress, RetryAfter: time.Nanosecond}, 409, "in-progress", "1"},
		{&idem.Refusal{Code: idem.CodeInProgress, RetryAfter: time.Second}, 409, "in-progress", "1"},
		{&idem.Refusal{Code: idem.CodeUnavailable, RetryAfter: 1001 * time.Millisecond}, 503, "unavailable", "2"},
		{&idem.Refusal{Code: idem.CodeStoreLost, RetryAfter: time.Minute}, 503, "store-lost", "60"},
		{&idem.Refusal{Code: idem.CodeOwnershipLost}, 503, "ownership-lost", ""},
		{errors.Join(errors.New("secret"), idem.NewRefusal(idem.CodeKeyExpired, errors.New("secret"))), 409, "key-expired", ""},
		{idem.NewRefusal(idem.CodeOutcomeUnknown, errors.New("secret")), 409, "outcome-unknown", ""},
		{idem.NewRefusal("made-up", errors.New("secret")), 500, "made-up", ""},
		{errors.New("secret"), 500, "internal", ""},
	} {
		w := serve(t, live(idem.Result{}, tt.err), func(w http.ResponseWriter, r *http.Request) {
			w.Header().Set("X-Handler", "secret")
			_, _ = io.WriteString(w, "secret")
		})
		body := w.Body.String()
		if w.Code != tt.status || !strings.Contains(body, `"code":"`+tt.code+`"`) || w.Header().Get("Retry-After") != tt.retry ||
			w.Header().Get("X-Handler") != "" || strings.Contains(body, "secret") {
			t.Errorf("%v: answer = %d %v %s", tt.err, w.Code, w.Header(), body)
		}
	}
}

// What is stored may be no HTTP response, because an operator or another transport has stored it.
func TestReplayOfAnyStatus(t *testing.T) {
	for _, tt := range []struct {
		response idem.Response
		status   int
	}{
		{idem.Response{Status: 200}, 200}, {idem.Response{Status: 999}, 999}, {idem.Response{Status: 0}, 409}, {idem.Response{Status: 103}, 409},
		{idem.Response{Status: 1000}, 409}, {idem.Response{Status: -1}, 409}, {idem.Response{Status: 200, Omitted: true}, 409},
	} {
		w := serve(t, answers(idem.Result{Response: tt.response, Replayed: true}, nil), nil)
		if w.Code != tt.status || strings.Contains(w.Body.String(), "result-unavailable") != (tt.status == 409) || (w.Header().Get(ReplayedHeader) == "true") != (tt.status != 409) {
			t.Errorf("replay of %+v = %d %v %s, want %d", tt.response, w.Code, w.Header(), w.Body, tt.status)
		}
	}
}

// A framework that sends the response at the end can still replace all of it.
func TestBufferedResponse(t *testing.T) {
	var stored idem.Response
	engine := func(err error) *scripted {
		return &scripted{do: func(ctx context.Context, _ idem.Operation, h idem.Handler) (idem.Result, error) {
			stored, _ = h(ctx)
			return idem.Result{Response: stored}, err
		}}
	}
	long := strings.Repeat("x", 11)
	writes := func(w *Writer, _ *http.Request) {
		if err := w.FlushError(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("FlushError() = %v, want %v", err, http.ErrNotSupported)
		}
		if _, _, err := w.Hijack(); !errors.Is(err, http.ErrNotSupported) {
			t.Errorf("Hijack() = %v, want %v", err, http.ErrNotSupported)
		}
		w.WriteHeader(201)
		_, _ = io.WriteString(w, long)
		w.Header().Set(http.TrailerPrefix+"X-Sum", "1")
	}
	bypasses := func(w *Writer, _ *http.Request) { w.Bypass(202, http.Header{"Content-Type": {"text/event-stream"}}) }
	fails := func(w *Writer, r *http.Request) { writes(w, r); w.WriteHeader(502) }
	for name, tt := range map[string]struct {
		next    func(w *Writer, r *http.Request)
		err     error // the engine's
		status  int   // 0: nothing was written
		body    string
		omitted bool
	}{
		"over the limit":              {writes, nil, 201, long, true},
		"over the limit, and refused": {writes, idem.NewRefusal(idem.CodeOwnershipLost, nil), 503, "ownership-lost", true},
		"over the limit, and failed":  {fails, nil, 502, "", false},
		"bypassed":                    {bypasses, nil, 0, "", true},
		"bypassed, and refused":       {bypasses, idem.NewRefusal(idem.CodeOwnershipLost, nil), 503, "ownership-lost", true},
	} {
		rt, err := routeOn(engine(tt.err), idem.Policy{AllowGlobalKeys: true, MaxResponseBody: 10, InDoubt: idem.LeaveUnknown()}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		r := httptest.NewRequest("POST", "/pay", strings.NewReader("{}"))
		r.Header.Set(DefaultHeader, "k1")
		w := newServer()
		rt.Serve(Call{Writer: w, Buffered: true, Request: r, Next: tt.next})
		if w.status() != tt.status || !strings.Contains(w.Body.String(), tt.body) || tt.err != nil && strings.Contains(w.Body.String(), long) {
			t.Errorf("%s: answer = %d %q, want %d %q", name, w.status(), w.Body, tt.status, tt.body)
		}
		if trailer := w.Header().Get(http.TrailerPrefix + "X-Sum"); trailer != "" && tt.err != nil {
			t.Errorf("%s: the refusal has the trailer %q of the handler", name, trailer)
		}
		if stored.Omitted != tt.omitted {
			t.Errorf("%s: stored = %+v, want omitted %v", name, stored, tt.omitted)
		}
	}
}

// plain is a writer that can do nothing but write.
type plain struct{ http.ResponseWriter }

func TestFlushWithoutAnybodyToFlushKeepsTheResponse(t *testing.T) {
	c := writerOf(plain{httptest.NewRecorder()}, 100)
	if err := c.FlushError(); !errors.Is(err, http.ErrNotSupported) || c.streamed {
		t.Errorf("FlushError() = %v, streamed %v", err, c.streamed)
	}
	if _, _, err := c.Hijack(); !errors.Is(err, http.ErrNotSupported) || c.streamed {
		t.Errorf("Hijack() = %v, streamed %v", err, c.streamed)
	}
	if err := c.Push("/x", nil); !errors.Is(err, http.ErrNotSupported) {
		t.Errorf("Push() = %v", err)
	}
	_, _ = io.WriteString(c, "kept")
	if resp := c.response(nil); resp.Omitted || string(resp.Body) != "kept" {
		t.Errorf("response = %+v", resp)
	}
}

func TestRefusedIsReported(t *testing.T) {
	e := answers(idem.Result{}, nil)
	x, err := routeOn(e, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	r := httptest.NewRequest("POST", "/", nil)
	x.Serve(Call{Writer: httptest.NewRecorder(), Request: r})
	if len(e.refused) != 1 || e.refused[0] != idem.CodeKeyMissing {
		t.Errorf("refused = %v, want key-missing", e.refused)
	}
}

// endless is a body that never ends and says nothing of its length.
type endless struct{ read int }

func (e *endless) Read(p []byte) (int, error) { e.read += len(p); return len(p), nil }

func TestReadBodyStopsAtTheLimit(t *testing.T) {
	const limit = 1 << 20
	body := &endless{}
	r := httptest.NewRequest("POST", "/", body)
	if _, err := ReadBody(r, limit); err == nil {
		t.Error("no error")
	}
	if body.read > 3*limit {
		t.Errorf("%d bytes read, limit %d", body.read, limit)
	}
}

func FuzzServe(f *testing.F) {
	f.Add("POST", "/pay?a=1", "k1", "application/json", []byte("{}"))
	f.Add("PUT", "/%2f?%zz", `"k\"1"`, "text/plain;;", []byte("\xff"))
	f.Add("DELETE", "/", "a,b", "", []byte(nil))
	f.Fuzz(func(t *testing.T, method, target, key, contentType string, body []byte) {
		r, err := http.NewRequest(method, target, strings.NewReader(string(body)))
		if err != nil {
			return
		}
		r.Header["Idempotency-Key"] = []string{key}
		r.Header["Content-Type"] = []string{contentType}
		ran := false
		e := &scripted{}
		e.do = func(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error) {
			if _, err := op.Fingerprint(idem.FingerprintVersion); err != nil {
				return idem.Result{}, err
			}
			resp, err := h(ctx)
			return idem.Result{Response: resp}, err
		}
		x, err := routeOn(e, idem.Policy{AllowGlobalKeys: true, MaxRequestBody: 1 << 10, InDoubt: idem.LeaveUnknown()}, Config{})
		if err != nil {
			t.Fatal(err)
		}
		w := httptest.NewRecorder()
		served := x.Serve(Call{Writer: w, Request: r, Next: func(c *Writer, r *http.Request) {
			ran = true
			got, _ := io.ReadAll(r.Body)
			if string(got) != string(body) {
				t.Errorf("handler read %q, sent %q", got, body)
			}
			_, _ = c.Write(got)
		}})
		if !served { // a safe method is left to the adapter
			if ran || w.Body.Len() > 0 {
				t.Errorf("ran %v, answer %d %s, want nothing", ran, w.Code, w.Body)
			}
			return
		}
		if ran != (w.Code == 200) || !ran && (w.Code < 400 || w.Code > 499) {
			t.Errorf("ran %v, answer %d %s", ran, w.Code, w.Body)
		}
	})
}

// After a conflict of its joined transaction a handler runs again, and its first response is
// forgotten. It does not run again once the client has a part of that response.
func TestHandlerThatRunsAgainAfterAConflict(t *testing.T) {
	var errs []error
	twice := &scripted{do: func(ctx context.Context, _ idem.Operation, h idem.Handler) (idem.Result, error) {
		_, _ = h(ctx)
		resp, err := h(ctx)
		errs = append(errs, err)
		return idem.Result{Response: resp}, err
	}}
	runs := 0
	w := serve(t, twice, func(w http.ResponseWriter, _ *http.Request) {
		if runs++; runs == 1 {
			w.Header().Set("X-Lost", "1")
			w.WriteHeader(500)
			_, _ = io.WriteString(w, "lost")
			return
		}
		w.WriteHeader(201)
		_, _ = io.WriteString(w, "paid")
	})
	if errs[0] != nil || w.Code != 201 || w.Body.String() != "paid" || w.Header().Get("X-Lost") != "" {
		t.Errorf("answer = %d %q %v, %v; want the second response alone", w.Code, w.Body, w.Header(), errs[0])
	}
}

// A response that the framework has cannot be taken back either.
func TestHandlerOfABypassedResponseRunsOnce(t *testing.T) {
	var again error
	runs := 0
	twice := &scripted{do: func(ctx context.Context, _ idem.Operation, h idem.Handler) (idem.Result, error) {
		resp, _ := h(ctx)
		_, again = h(ctx)
		return idem.Result{Response: resp}, nil
	}}
	serveCall(t, twice, Call{Writer: newServer(), Buffered: true, Next: func(w *Writer, _ *http.Request) {
		runs++
		w.Bypass(202, http.Header{})
	}})
	if runs != 1 || !errors.Is(again, errSentInPart) {
		t.Errorf("%d runs and %v, want one run and %v", runs, again, errSentInPart)
	}
}

// The engine is told whether the handler may run again.
func TestRunOnce(t *testing.T) {
	for _, again := range []bool{false, true} {
		var once bool
		e := &scripted{do: func(_ context.Context, op idem.Operation, _ idem.Handler) (idem.Result, error) {
			once = op.RunOnce
			return idem.Result{Response: idem.Response{Status: 200}, Replayed: true}, nil
		}}
		if serveCall(t, e, Call{Writer: newServer(), RunAgain: again}); once == again {
			t.Errorf("RunOnce of a call with RunAgain %v = %v", again, once)
		}
	}
}

// A connection that the handler has taken over is not broken off, whatever became of the outcome.
func TestHijackedConnectionIsNotBrokenOff(t *testing.T) {
	s := newServer()
	serveCall(t, live(idem.Result{}, errors.New("x")), Call{Writer: s, Next: func(w *Writer, _ *http.Request) {
		if _, _, err := w.Hijack(); err != nil {
			t.Errorf("Hijack() = %v", err)
		}
	}})
	if s.statuses != nil || s.deadlines != nil {
		t.Errorf("statuses %v and deadlines %v after a hijack, want none", s.statuses, s.deadlines)
	}
}

// An error of the engine reaches no client of the token handler.
func TestIssueTokenRefuses(t *testing.T) {
	rt, err := routeOn(&scripted{}, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for method, status := range map[string]int{"POST": 500, "GET": 405} {
		r, w := httptest.NewRequest(method, "/tokens", http.NoBody), httptest.NewRecorder()
		rt.IssueToken(Call{Writer: w, Request: r}, time.Minute)
		if w.Code != status || strings.Contains(w.Body.String(), "secret") || (w.Header().Get("Allow") == "POST") != (status == 405) {
			t.Errorf("%s: answer = %d %v %s, want %d", method, w.Code, w.Header(), w.Body, status)
		}
	}
}
