package exchangetest

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
)

// wantRefusal checks a refusal against the table of refusals in the design.
func (b *bundle) wantRefusal(a answer, code idem.Code) {
	b.Helper()
	retryAfter := ""
	if idem.NewRefusal(code, nil).RetryAfter > 0 {
		retryAfter = "1"
	}
	b.wantProblem(a, code, retryAfter)
}

// wantProblem is wantRefusal with the pause that the client is asked for.
func (b *bundle) wantProblem(a answer, code idem.Code, retryAfter string) {
	b.Helper()
	want, ok := map[idem.Code]struct {
		status int
		title  string // "" if the table leaves it open
		retry  bool
	}{
		idem.CodeKeyMissing:        {400, "Idempotency-Key is missing", false},
		idem.CodeKeyInvalid:        {400, "", false},
		idem.CodeBodyInvalid:       {400, "", false},
		idem.CodeTokenUnknown:      {403, "", false},
		idem.CodeInProgress:        {409, "A request is outstanding for this Idempotency-Key", true},
		idem.CodeKeyReused:         {422, "Idempotency-Key is already used", false},
		idem.CodeOutcomeUnknown:    {409, "", false},
		idem.CodeKeyExpired:        {409, "", false},
		idem.CodeResultUnavailable: {409, "", false},
		idem.CodeOwnershipLost:     {503, "", true},
		idem.CodeUnavailable:       {503, "", true},
		idem.CodeStoreLost:         {503, "", true},
		idem.CodeBodyTooLarge:      {413, "", false},
		idem.CodeBodyIncomplete:    {408, "", true},
		idem.CodeTooManyOpen:       {429, "", true},
		idem.CodeInternal:          {500, "", false},
	}[code]
	if !ok {
		b.Fatalf("no row for %q", code)
	}
	var p struct {
		Title, Detail string
		Status        int
		Code          idem.Code
	}
	if err := json.Unmarshal([]byte(a.body), &p); err != nil {
		b.Fatalf("answer = %d %q, want a refusal as %q: %v", a.StatusCode, a.body, code, err)
	}
	if a.StatusCode != want.status || p.Status != want.status || p.Code != code || p.Detail == "" ||
		p.Title == "" || want.title != "" && p.Title != want.title {
		b.Errorf("answer = %d %s, want %d %q", a.StatusCode, a.body, want.status, code)
	}
	if got := a.Header.Get("Content-Type"); got != "application/problem+json" {
		b.Errorf("%s: Content-Type = %q", code, got)
	}
	if got := a.Header.Get("Cache-Control"); got != "no-store" {
		b.Errorf("%s: Cache-Control = %q", code, got)
	}
	if got := a.Header.Get("Retry-After"); got != retryAfter || retryAfter == "" && want.retry {
		b.Errorf("%s: Retry-After = %q, want %q", code, got, retryAfter)
	}
	if a.replayed() || a.Header["X-Handler"] != nil {
		b.Errorf("%s: header = %v", code, a.Header)
	}
	if strings.Contains(a.body, "secret") {
		b.Errorf("%s: internal error in %s", code, a.body)
	}
}

// wantNothing checks that a request left no trace.
func (b *bundle) wantNothing() {
	b.Helper()
	b.wantRuns(0)
	if n := b.records.Len(); n != 0 {
		b.Errorf("%d records, want none", n)
	}
}

// refuses is a case without a run and without a record.
func refuses(name string, code idem.Code, prepare func(b *bundle), request func(b *bundle) *http.Request) testCase {
	return testCase{name, func(b *bundle) {
		if prepare != nil {
			prepare(b)
		}
		b.protect(created)
		b.wantRefusal(b.send(request(b)), code)
		b.wantNothing()
	}}
}

func keyed(keys ...string) func(b *bundle) *http.Request {
	return func(b *bundle) *http.Request {
		return withHeader(b.request("POST", "/pay", "", payBody), "Idempotency-Key", keys...)
	}
}

func bodied(contentType, body string) func(b *bundle) *http.Request {
	return func(b *bundle) *http.Request {
		return withHeader(b.request("POST", "/pay", "k1", body), "Content-Type", contentType)
	}
}

func chunked(body string) func(b *bundle) *http.Request {
	return func(b *bundle) *http.Request {
		r := b.request("POST", "/pay", "k1", "x")
		r.ContentLength, r.Body = -1, io.NopCloser(strings.NewReader(body))
		return r
	}
}

func limited(n int64) func(b *bundle) {
	return func(b *bundle) { b.policy.MaxRequestBody = n }
}

func scoped(scope string, err error) func(b *bundle) {
	return func(b *bundle) {
		b.policy.Scope = func(context.Context) (string, error) { return scope, err }
	}
}

// zipped returns a text as gzip.
func zipped(text string) string {
	var buf bytes.Buffer
	z := gzip.NewWriter(&buf)
	_, _ = io.WriteString(z, text)
	_ = z.Close()
	return buf.String()
}

var refusalCases = []testCase{
	refuses("no key", idem.CodeKeyMissing, nil, func(b *bundle) *http.Request { return b.request("POST", "/pay", "", payBody) }),
	refuses("an empty key", idem.CodeKeyInvalid, nil, keyed("")),
	refuses("two lines", idem.CodeKeyInvalid, nil, keyed("k1", "k1")),
	refuses("two keys in one line", idem.CodeKeyInvalid, nil, keyed("k1,k2")),
	refuses("a key that is too long", idem.CodeKeyInvalid, nil, keyed(strings.Repeat("k", 256))),
	refuses("a quoted key without an end", idem.CodeKeyInvalid, nil, keyed(`"k1`)),
	refuses("a key that is not ASCII", idem.CodeKeyInvalid, nil, keyed("ключ")),
	refuses("a key with parameters", idem.CodeKeyInvalid, nil, keyed(`"k1";q=1`)),

	refuses("malformed JSON", idem.CodeBodyInvalid, nil, bodied("application/json", `{"amount":`)),
	refuses("duplicate members", idem.CodeBodyInvalid, nil, bodied("application/json", `{"amount":1,"\u0061mount":2}`)),
	refuses("deep nesting", idem.CodeBodyInvalid, nil, bodied("application/json", strings.Repeat("[", 1<<19))),
	refuses("invalid UTF-8", idem.CodeBodyInvalid, nil, bodied("application/json; charset=utf-8", "\"\xff\"")),
	refuses("malformed +json", idem.CodeBodyInvalid, nil, bodied("Application/Merge-Patch+JSON", `{`)),
	refuses("a secret in a malformed body", idem.CodeBodyInvalid, nil, bodied("application/json", `{"secret`)),

	refuses("bug 12: a body that says it is over the limit", idem.CodeBodyTooLarge, limited(16), keyed("k1")),
	refuses("bug 12: a body that turns out over the limit", idem.CodeBodyTooLarge, limited(16), chunked(payBody)),
	refuses("bug 12: a body over the default limit", idem.CodeBodyTooLarge, nil, bodied("text/plain", strings.Repeat("x", 1<<20+1))),

	refuses("an unknown token", idem.CodeTokenUnknown, func(b *bundle) { b.policy.IssuedTokens = true }, keyed("k1")),
	refuses("no scope", idem.CodeInternal, scoped("", nil), keyed("k1")),
	refuses("a scope that cannot be told", idem.CodeInternal, scoped("m1", errors.New("secret")), keyed("k1")),
	refuses("a scope that is a refusal", idem.CodeInternal, scoped("", idem.NewRefusal(idem.CodeKeyReused, nil)), keyed("k1")),
	refuses("bug 24: the store is down", idem.CodeUnavailable, func(b *bundle) { b.failStore(errDown) }, keyed("k1")),
	refuses("bug 24: the lock service is down", idem.CodeUnavailable, func(b *bundle) { b.locker.FailBefore("TryAcquire", idemtest.Every, errDown) }, keyed("k1")),
	refuses("the store lost its records", idem.CodeStoreLost, func(b *bundle) { b.failStore(driver.ErrStoreLost) }, keyed("k1")),

	{"a body that somebody in front has read", func(b *bundle) {
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				_, _ = io.Copy(io.Discard, r.Body)
				next.ServeHTTP(w, r)
			})
		})
		b.wantRefusal(b.pay("k1"), idem.CodeInternal)
		b.wantNothing()
	}},
	{"a body that is empty and came without its length may have been read in front", func(b *bundle) {
		b.protect(created)
		a := b.send(chunked("")(b))
		if b.wantRefusal(a, idem.CodeInternal); !strings.Contains(a.body, "Content-Length: 0") {
			b.Errorf("refusal = %s, want the way out for a request without a body", a.body)
		}
		b.wantNothing()
		b.want(b.send(b.request("POST", "/pay", "k1", "")), 201, `{"id":"p1"}`, false)
	}},
	{"a body that somebody in front has replaced is taken", func(b *bundle) {
		var to string
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { // as one that decrypts does
				r.Body = http.MaxBytesReader(w, io.NopCloser(strings.NewReader(to)), 1<<20)
				next.ServeHTTP(w, r)
			})
		})
		for key, plain := range map[string]string{"k1": `{"amount":1}`, "k2": payBody + strings.Repeat(" ", 100)} {
			to = plain
			b.want(b.pay(key), 200, plain, false)
			b.want(b.pay(key), 200, plain, true)
			to = `{"amount":2}`
			b.wantRefusal(b.pay(key), idem.CodeKeyReused)
		}
		b.wantRuns(2)
	}},
	{"a body that a decompressor in front has made shorter is taken", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) { _, _ = io.Copy(w, r.Body) }, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				z, err := gzip.NewReader(r.Body)
				if err != nil {
					b.Error(err)
					return
				}
				r.Body = z
				r.Header.Del("Content-Encoding")
				next.ServeHTTP(w, r)
			})
		})
		for _, replayed := range []bool{false, true} {
			req := withHeader(b.request("POST", "/pay", "k1", zipped(`{"amount":1}`)), "Content-Encoding", "gzip")
			b.want(b.send(req), 200, `{"amount":1}`, replayed)
		}
	}},
	{"a body that stalls, or whose client is gone, is not the client's mistake", func(b *bundle) {
		stall := true
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				if stall { // as after http.Server.ReadTimeout
					_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(-time.Second))
				}
				next.ServeHTTP(w, r)
			})
		})
		for _, framing := range []string{"Content-Length: 100\r\n\r\n{", "Transfer-Encoding: chunked\r\n\r\n5\r\n{"} {
			for _, stall = range []bool{true, false} {
				conn, r := b.rawExchange("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nContent-Type: application/json\r\n" + framing)
				if !stall {
					_ = conn.(*net.TCPConn).CloseWrite()
				}
				resp, err := http.ReadResponse(r, nil)
				if err != nil {
					b.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				b.wantRefusal(answer{resp, string(body), err}, idem.CodeBodyIncomplete)
			}
		}
		b.wantNothing()
	}},
	{"a limit further outside", func(b *bundle) {
		b.protect(created, func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				r.Body = http.MaxBytesReader(w, r.Body, 8)
				next.ServeHTTP(w, r)
			})
		})
		b.wantRefusal(b.pay("k1"), idem.CodeBodyTooLarge)
		b.wantNothing()
	}},
	{"a body as long as the limit is taken", func(b *bundle) {
		b.policy.MaxRequestBody = int64(len(payBody))
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		req := chunked(payBody)(b)
		req.Header.Set("Idempotency-Key", "k2")
		b.want(b.send(req), 201, `{"id":"p1"}`, false)
	}},
	{"a body over the limit is refused before it is sent", func(b *bundle) {
		b.protect(created)
		_, r := b.rawExchange("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nExpect: 100-continue\r\nContent-Length: 99999999\r\n\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			b.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		b.wantRefusal(answer{resp, string(body), err}, idem.CodeBodyTooLarge)
		b.wantNothing()
	}},
	{"a body that breaks off", func(b *bundle) {
		b.protect(created)
		_, r := b.rawExchange("POST /pay HTTP/1.1\r\nHost: a\r\nIdempotency-Key: k1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n")
		resp, err := http.ReadResponse(r, nil)
		if err != nil {
			b.Fatal(err)
		}
		body, err := io.ReadAll(resp.Body)
		b.wantRefusal(answer{resp, string(body), err}, idem.CodeBodyInvalid)
		b.wantNothing()
	}},
	{"a request that is still running", func(b *bundle) {
		started, goOn := make(chan struct{}), make(chan struct{})
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			close(started)
			<-goOn
			created(w, r)
		})
		done := make(chan answer, 1)
		go func() {
			a, _ := b.trySend(b.request("POST", "/pay", "k1", payBody))
			done <- a
		}()
		receive(b, "a start", started)
		b.wantRefusal(b.pay("k1"), idem.CodeInProgress)
		b.wantRefusal(b.send(b.request("POST", "/pay", "k1", `{}`)), idem.CodeKeyReused)
		close(goOn)
		b.want(receive(b, "an answer", done), 201, `{"id":"p1"}`, false)
		b.wantRuns(1)
	}},
	{"bug 19: a key whose result has expired", func(b *bundle) {
		b.protect(created)
		b.want(b.pay("k1"), 201, `{"id":"p1"}`, false)
		b.later.Store(int64(25 * time.Hour))
		b.wantRefusal(b.pay("k1"), idem.CodeKeyExpired)
		b.wantRuns(1)
	}},
	{"an outcome that nobody knows", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			events(w)
			w.WriteHeader(500)
			_ = http.NewResponseController(w).Flush()
		})
		b.want(b.pay("k1"), 500, "", false)
		b.wantRefusal(b.pay("k1"), idem.CodeOutcomeUnknown)
		b.wantRuns(1)
	}},
	{"ownership that was lost shows nothing of the handler", func(b *bundle) {
		b.protect(func(w http.ResponseWriter, r *http.Request) {
			x, _ := idem.FromContext(r.Context())
			b.lock.Revoke(x.KeyID)
			b.operator(r.Context(), nil)
			w.Header().Set("X-Handler", "1")
			w.Header().Set("Content-Length", "6")
			_, _ = io.WriteString(w, "secret")
		})
		b.wantRefusal(b.pay("k1"), idem.CodeOwnershipLost)
		b.wantRuns(1)
	}},
}
