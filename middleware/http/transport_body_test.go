package idemhttp_test

import (
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"

	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// onlyOnce is a body that cannot be had again.
type onlyOnce struct {
	io.Reader
	closed bool
	err    error
}

func (o *onlyOnce) Close() error {
	o.closed = true
	return o.err
}

func TestTransportBodies(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name     string
		body     io.Reader
		length   int64
		attempts int
		wantErr  bool
	}{
		{"within the buffer", strings.NewReader(long), -1, 2, false},
		{"as long as the buffer, and it says so", strings.NewReader(long), int64(len(long)), 2, false},
		{"longer", strings.NewReader(long + "9"), -1, 1, false},
		{"longer, and it says so", strings.NewReader(long + "9"), int64(len(long)) + 1, 1, false},
		{"broken", io.MultiReader(strings.NewReader("12"), errorReader{}), -1, 0, true},
		{"broken at its end", brokenClose{strings.NewReader("12")}, -1, 0, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{}
				f.answers = []func(*http.Request) (*http.Response, error){f.status(503, nil, "busy")}
				req := post(t, t.Context(), "")
				body := &onlyOnce{Reader: tt.body}
				if _, ok := tt.body.(brokenClose); ok {
					body.err = errors.New("broken")
				}
				req.Body, req.GetBody, req.ContentLength = body, nil, tt.length
				resp, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(req)
				if (err != nil) != tt.wantErr || len(f.times) != tt.attempts || !body.closed {
					t.Fatalf("RoundTrip() = %v, %v after %d attempts (body closed %v), want %d", resp, err, len(f.times), body.closed, tt.attempts)
				}
				if err != nil {
					return
				}
				resp.Body.Close()
				if len(f.bodies) != tt.attempts {
					t.Errorf("%d bodies sent, want one for each of %d attempts", len(f.bodies), tt.attempts)
				}
				for _, got := range f.bodies {
					if got != long && got != long+"9" {
						t.Errorf("body of %d bytes, want all of it", len(got))
					}
				}
			})
		})
	}
	t.Run("GetBody fails", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{}
			f.answers = []func(*http.Request) (*http.Response, error){f.status(503, nil, "busy")}
			req := post(t, t.Context(), "x")
			req.GetBody = func() (io.ReadCloser, error) { return nil, errors.New("gone") }
			if _, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(req); err == nil || f.open != 0 {
				t.Errorf("RoundTrip() = %v, want an error", err)
			}
		})
	})
	t.Run("none", func(t *testing.T) {
		t.Parallel()
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{}
			f.answers = []func(*http.Request) (*http.Response, error){f.status(503, nil, "busy")}
			req := post(t, t.Context(), "")
			req.Body, req.GetBody = nil, nil
			resp, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(req)
			if err != nil || resp.StatusCode != 201 {
				t.Fatalf("RoundTrip() = %v, %v, want 201", resp, err)
			}
			resp.Body.Close()
		})
	})
}

// brokenClose is a body whose Close fails.
type brokenClose struct{ io.Reader }

type errorReader struct{}

func (errorReader) Read([]byte) (int, error) { return 0, errors.New("broken") }

// A response that may be long reaches the caller as it comes. Nothing of it is read ahead.
func TestTransportStreamsLongResponses(t *testing.T) {
	t.Parallel()
	h, _ := problem("in-progress", "")
	for name, tt := range map[string]struct {
		method string
		status int
		header http.Header
		length int64
		ahead  bool
	}{
		"of unknown length":            {"POST", 200, nil, -1, false},
		"a problem of unknown length":  {"POST", 503, h, -1, false},
		"a conflict of unknown length": {"POST", 409, nil, -1, false},
		"over the buffer":              {"POST", 200, nil, int64(len(long)) + 1, false},
		"as long as the buffer":        {"POST", 200, nil, int64(len(long)), true},
		"an answer to HEAD":            {"HEAD", 200, nil, 8, false},
		"empty":                        {"POST", 200, nil, 0, false},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			f := &flaky{}
			read := &noted{Reader: strings.NewReader(long)}
			f.answers = []func(*http.Request) (*http.Response, error){func(req *http.Request) (*http.Response, error) {
				resp := f.respond(req, tt.status, tt.header, "")
				resp.Body, resp.ContentLength = closer{read, f}, tt.length
				return resp, nil
			}}
			req := post(t, t.Context(), "x")
			req.Method = tt.method
			req.Header.Set("Idempotency-Key", "k1")
			resp, err := idemhttp.MustNewTransport(f, honoured, idemhttp.WithRetryElapsed(0)).RoundTrip(req)
			if err != nil || resp.StatusCode != tt.status || (read.reads > 0) != tt.ahead || len(f.times) != 1 {
				t.Fatalf("RoundTrip() = %v, %v after %d attempts, with %d reads; want it read ahead: %v", resp, err, len(f.times), read.reads, tt.ahead)
			}
			if b, err := io.ReadAll(resp.Body); err != nil || string(b) != long {
				t.Errorf("body of %d bytes, %v, want all of it", len(b), err)
			}
			resp.Body.Close()
		})
	}
}

// noted counts reads.
type noted struct {
	io.Reader
	reads int
}

func (n *noted) Read(p []byte) (int, error) {
	n.reads++
	return n.Reader.Read(p)
}

// Only the key is added to a request. One that is made by hand may have no headers.
func TestTransportKeepsTheHeaders(t *testing.T) {
	t.Parallel()
	for _, header := range []http.Header{{"Authorization": {"Bearer x"}}, nil} {
		f := &flaky{}
		var got http.Header
		f.answers = []func(*http.Request) (*http.Response, error){func(req *http.Request) (*http.Response, error) {
			got = req.Header
			return f.respond(req, 200, nil, ""), nil
		}}
		req := post(t, t.Context(), "x")
		req.Header = header
		resp, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if got.Get("Authorization") != header.Get("Authorization") || len(got) != len(header)+1 {
			t.Errorf("sent header = %v, want %v and a key", got, header)
		}
	}
}
