package exchangetest

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"mime/multipart"
	"net/http"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// againCases are about a handler that runs again, because its joined transaction met a conflict
// and was rolled back. An adapter that cannot run it again answers with a failure, and the
// client's repeat runs the handler. Either way each run gets the request as the client sent it.
var againCases = []testCase{
	{"a handler that changes its request gets it unchanged again", func(b *bundle) {
		b.runAgain(func(req *http.Request) {
			req.Header["X-List"] = []string{"a", "b"}
			req.Header.Set("Cookie", "session=1")
		}, payBody, "application/json", func(_ *http.Request) string { return "" })
	}},
	{"a handler that changes a parsed form gets it unchanged again", func(b *bundle) {
		b.runAgain(nil, "amount=1250&to=bob", "application/x-www-form-urlencoded", func(r *http.Request) string {
			amount, note, to := r.FormValue("amount"), r.FormValue("note"), r.PostFormValue("to")
			r.Form.Set("amount", "1")
			r.PostForm.Set("to", "eve")
			r.PostForm.Set("note", "set by the handler")
			return amount + note + to
		})
	}},
	{"a handler that parses a form with files can parse it again", func(b *bundle) {
		var files sync.Map
		body, contentType := form(b)
		b.runAgain(nil, body, contentType, func(r *http.Request) string {
			if err := r.ParseMultipartForm(1); err != nil {
				b.Errorf("ParseMultipartForm() = %v", err)
				return err.Error()
			}
			f, _, err := r.FormFile("receipt")
			if err != nil {
				b.Errorf("FormFile() = %v", err)
				return err.Error()
			}
			content, err := io.ReadAll(f)
			if kept, ok := f.(*os.File); ok {
				files.Store(kept.Name(), true)
			}
			seen := fmt.Sprint(r.FormValue("amount"), r.PostFormValue("amount"), r.MultipartForm.Value, len(content), err, f.Close())
			r.Form.Set("amount", "1")
			r.PostForm.Set("amount", "1")
			r.MultipartForm.Value["amount"] = []string{"1"}
			return seen
		})
		for name := range files.Range {
			b.waitGone(name.(string))
		}
	}},
	{"a form that is parsed in front, with its body put back, is there for each run", func(b *bundle) {
		body, contentType := form(b)
		parse := func(next http.Handler) http.Handler {
			return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				kept, _ := io.ReadAll(r.Body)
				r.Body = io.NopCloser(bytes.NewReader(kept))
				if err := r.ParseMultipartForm(1); err != nil {
					b.Errorf("ParseMultipartForm() = %v", err)
				}
				r.Body = io.NopCloser(bytes.NewReader(kept))
				next.ServeHTTP(w, r)
			})
		}
		b.runAgain(nil, body, contentType, func(r *http.Request) string {
			f, _, err := r.FormFile("receipt")
			if err != nil {
				b.Errorf("FormFile() = %v", err)
				return err.Error()
			}
			content, err := io.ReadAll(f)
			seen := fmt.Sprint(r.FormValue("amount"), len(content), err, f.Close())
			_ = r.MultipartForm.RemoveAll()
			return seen
		}, parse)
	}},
}

// form returns a form with a file that is too large for the memory of a parser with a small limit.
func form(b *bundle) (body, contentType string) {
	var buf bytes.Buffer
	m := multipart.NewWriter(&buf)
	file, err := m.CreateFormFile("receipt", "receipt.pdf")
	if err != nil {
		b.Fatal(err)
	}
	_, _ = io.WriteString(file, strings.Repeat("x", 10<<10))
	_ = m.WriteField("amount", "1250")
	_ = m.Close()
	return buf.String(), m.FormDataContentType()
}

// waitGone waits until a temporary file was removed. The server removes some of them after the
// client has its answer.
func (b *bundle) waitGone(name string) {
	b.Helper()
	for start := time.Now(); ; runtime.Gosched() {
		if _, err := os.Stat(name); os.IsNotExist(err) {
			return
		}
		if time.Since(start) > patience {
			b.Errorf("the temporary file %s was not removed", name)
			return
		}
	}
}

// runAgain sends a request to a handler whose first run is rolled back. The handler compares what it
// sees with what it saw before, and then changes everything in its request. look is a part of the
// handler that uses the request in its own way and returns what it saw.
func (b *bundle) runAgain(prepare func(*http.Request), body, contentType string, look func(*http.Request) string, around ...func(http.Handler) http.Handler) {
	b.Helper()
	b.engine = Conflicting(b, 1)
	var mu sync.Mutex
	var first string
	b.protect(func(w http.ResponseWriter, r *http.Request) {
		if _, err := idem.JoinedTxOf(r.Context()); err != nil {
			b.Errorf("JoinedTxOf() = %v", err)
		}
		seen := describe(b, r) + look(r)
		rest, err := io.ReadAll(r.Body)
		parsed := r.Form != nil || r.MultipartForm != nil
		if err != nil || string(rest) != body && !parsed {
			b.Errorf("run %d: body = %q, %v, want %q", b.runs.Load(), rest, err, body)
		}
		mu.Lock()
		defer mu.Unlock()
		if first == "" {
			first = seen
		}
		if seen != first {
			b.Errorf("run %d sees\n%s, want what the first run saw:\n%s", b.runs.Load(), seen, first)
		}
		spoil(r)
		created(w, r)
	}, around...)
	send := func() answer {
		req := withHeader(b.request("POST", "/v1/pay%2Fnow?currency=USD&note=a", "k1", body), "Content-Type", contentType)
		if prepare != nil {
			prepare(req)
		}
		return b.send(req)
	}
	a := send()
	if b.runs.Load() == 1 && a.StatusCode >= 500 {
		a = send()
	}
	b.want(a, 201, `{"id":"p1"}`, false)
	b.wantRuns(2)
	b.want(send(), 201, `{"id":"p1"}`, true)
	b.wantRuns(2)
}

// describe returns everything in a request that a handler can see and change, except its body and
// its context.
func describe(b *bundle, r *http.Request) string {
	var s strings.Builder
	fmt.Fprintf(&s, "%s %s %s %s %s %d %v %v %v\n", r.Method, r.URL, r.RequestURI, r.Host, r.Proto, r.ContentLength, r.TransferEncoding, r.Trailer, r.Close)
	fmt.Fprintf(&s, "pattern %q, path value %q, form %v, body again %v\n", r.Pattern, r.PathValue("path"), r.Form, r.GetBody != nil)
	for _, name := range slices.Sorted(maps.Keys(r.Header)) {
		fmt.Fprintf(&s, "%s: %q\n", name, r.Header[name])
	}
	x, ok := idem.FromContext(r.Context())
	if !ok {
		b.Error("the run is no execution")
	}
	fmt.Fprintln(&s, x.OperationID)
	return s.String()
}

// spoil changes everything in a request, in place where that is possible.
func spoil(r *http.Request) {
	for _, values := range r.Header {
		for i := range values {
			values[i] = "changed"
		}
	}
	r.Header.Set("X-Left", "1")
	r.Header.Del("Content-Type")
	r.Header.Del("Idempotency-Key")
	r.URL.Path, r.URL.RawPath, r.URL.RawQuery, r.URL.Host = "/tail", "", "left=1", "changed"
	r.Method, r.RequestURI, r.Host, r.Pattern, r.Close = "DELETE", "/tail", "changed", "changed", true
	r.ContentLength, r.TransferEncoding, r.Trailer = -1, []string{"chunked"}, http.Header{"X-Left": {"1"}}
	r.SetPathValue("path", "changed")
	_ = r.Body.Close()
	r.Body = nil
}

// Conflicting returns an engine in joined mode, in memory, whose first n transactions meet a
// conflict at their COMMIT, or at the statement whose error wraps [driver.ErrConflict]. Its
// handlers run again if their adapter can do that. They have to take their transaction with
// [idem.JoinedTxOf].
func Conflicting(t testing.TB, n int) *idem.Engine {
	t.Helper()
	return newLedger(memorystore.New(), n).engine(t, idem.WithConflictRetries(n))
}
