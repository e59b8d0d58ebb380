package exchange

import (
	"context"
	"errors"
	"fmt"
	"io"
	"mime/multipart"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

// A body that was read in front must not pass for an empty one, because different requests would be
// the same then. A body that was replaced must be taken, whatever its length is.
func TestReadBody(t *testing.T) {
	t.Parallel()
	broken := io.MultiReader(strings.NewReader("am"), brokenReader{})
	form := url.Values{"amount": {"1250"}}
	for name, tt := range map[string]struct {
		body   io.Reader
		length int64
		change func(*http.Request)
		code   idem.Code // "" if the body is read
	}{
		"whole":                             {strings.NewReader("amount"), 6, nil, ""},
		"of unknown length":                 {strings.NewReader("amount"), -1, nil, ""},
		"none":                              {nil, 0, nil, ""},
		"nothing":                           {http.NoBody, 0, nil, ""},
		"decompressed, and longer":          {strings.NewReader("amount"), 2, nil, ""},
		"decompressed, and shorter":         {strings.NewReader("amount"), 30, nil, ""},
		"breaks off":                        {broken, 6, nil, idem.CodeBodyInvalid},
		"stalls":                            {failingReader{os.ErrDeadlineExceeded}, 6, nil, idem.CodeBodyIncomplete},
		"stalls, of unknown length":         {failingReader{fmt.Errorf("read: %w", os.ErrDeadlineExceeded)}, -1, nil, idem.CodeBodyIncomplete},
		"read, and nothing is left":         {http.NoBody, 6, nil, idem.CodeInternal},
		"read, and taken away":              {nil, 6, nil, idem.CodeInternal},
		"of unknown length, and empty":      {strings.NewReader(""), -1, nil, idem.CodeInternal},
		"of unknown length, and taken away": {nil, -1, nil, idem.CodeInternal},
		"a form that was parsed":            {strings.NewReader(""), -1, func(r *http.Request) { r.PostForm = form }, idem.CodeInternal},
		"a form with files":                 {strings.NewReader(""), -1, func(r *http.Request) { r.MultipartForm = new(multipart.Form) }, idem.CodeInternal},
		"a form that was put back":          {strings.NewReader("amount=1250"), -1, func(r *http.Request) { r.PostForm = form }, ""},
		"a form without values":             {strings.NewReader("x"), -1, func(r *http.Request) { r.PostForm = url.Values{} }, ""},
		"a form that was closed too":        {brokenReader{}, -1, func(r *http.Request) { r.PostForm = form }, idem.CodeInternal},
	} {
		r := &http.Request{Method: "POST", ContentLength: tt.length}
		if tt.body != nil {
			r.Body = io.NopCloser(tt.body)
		}
		if tt.body == http.NoBody {
			r.Body = http.NoBody
		}
		if tt.change != nil {
			tt.change(r)
		}
		var code idem.Code
		body, err := readBody(r, nil, 100)
		if err != nil {
			code = adapter.RefusalOf(err).Code
		}
		if code != tt.code {
			t.Errorf("%s: readBody() = %v, want code %q", name, err, tt.code)
		}
		if tt.code != "" {
			continue
		}
		r = restore(r, body)
		for range 2 { // it is put back
			if again, err := ReadBody(r, 100); err != nil || string(again) != string(body) {
				t.Errorf("%s: ReadBody() = %q, %v, want %q again", name, again, err, body)
			}
		}
	}
}

// The first reader of a body knows that nobody has read it. What it puts back is taken.
func TestReadBodyInFront(t *testing.T) {
	t.Parallel()
	r := &http.Request{Method: "POST", ContentLength: -1, Body: io.NopCloser(strings.NewReader(""))}
	if body, err := ReadBody(r, 100); err != nil || len(body) != 0 || r.ContentLength != 0 {
		t.Errorf("ReadBody() = %q, %v, and then a length of %d, want an empty body of length 0", body, err, r.ContentLength)
	}
	if _, err := readBody(r, nil, 100); err != nil {
		t.Errorf("readBody() after it = %v", err)
	}
}

// failingReader fails with an error.
type failingReader struct{ error }

func (r failingReader) Read([]byte) (int, error) { return 0, r.error }

type brokenReader struct{}

func (brokenReader) Read([]byte) (int, error) { return 0, io.ErrUnexpectedEOF }

func TestPath(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ target, cut, want string }{
		{"/pay%2Fnow?a=1", "/now", "/pay%2Fnow"},
		{"http://a.example/pay?a=1", "/", "/pay"},
		{"http://a.example", "/", "/"},
		{"*", "*", "*"},
		{"", "/made here", "/made%20here"},
	} {
		r := &http.Request{RequestURI: tt.target, URL: &url.URL{Path: tt.cut}}
		if got := path(r); got != tt.want {
			t.Errorf("path() of target %q and URL %q = %q, want %q", tt.target, tt.cut, got, tt.want)
		}
	}
}

// Clients choose methods, and must not choose names. So a long route is cut, and methods that
// are made up share a name.
func TestNamesOfRoutes(t *testing.T) {
	t.Parallel()
	x, err := routeOn(answers(idem.Result{}, nil), idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ method, route, want string }{
		{"POST", "POST /pay", "POST /pay"},
		{"POST", "", "POST"},
		{"GET", "", "GET"},
		{"BREW", "", "other"},
		{"POST", strings.Repeat("/", 1000), strings.Repeat("/", 255)},
	} {
		if got := x.policyOf(&Call{Request: httptest.NewRequest(tt.method, "/", nil), Route: tt.route}).Name; got != tt.want {
			t.Errorf("name of %s on route %.20q = %q, want %q", tt.method, tt.route, got, tt.want)
		}
	}
}

// Without a scope no token is issued, not even one for everybody.
func TestTokensNeedAScope(t *testing.T) {
	t.Parallel()
	asked := false
	e := &scripted{issue: func() (idem.Token, error) { asked = true; return idem.Token{Value: "t1"}, nil }}
	rt, err := routeOn(e, idem.Policy{Scope: func(context.Context) (string, error) { return "", errors.New("secret") }, InDoubt: idem.LeaveUnknown()}, Config{})
	if err != nil {
		t.Fatal(err)
	}
	w := httptest.NewRecorder()
	rt.IssueToken(Call{Writer: w, Request: httptest.NewRequest("POST", "/tokens", nil)}, 0)
	if w.Code != 500 || asked || strings.Contains(w.Body.String(), "secret") {
		t.Errorf("answer = %d %s, engine asked: %v, want 500 without a token", w.Code, w.Body, asked)
	}
}
