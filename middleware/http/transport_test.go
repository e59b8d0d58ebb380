package idemhttp_test

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

var honoured = idemhttp.WithKeysHonoured()

func TestTransportRetries(t *testing.T) {
	t.Parallel()
	type answer = func(*flaky) func(*http.Request) (*http.Response, error)
	refusal := func(status int, code, retryAfter string) answer {
		return func(f *flaky) func(*http.Request) (*http.Response, error) {
			h, body := problem(code, retryAfter)
			return f.status(status, h, body)
		}
	}
	plain := func(status int, header http.Header) answer {
		return func(f *flaky) func(*http.Request) (*http.Response, error) { return f.status(status, header, "x") }
	}
	failure := func(err error) answer {
		return func(*flaky) func(*http.Request) (*http.Response, error) { return fails(err) }
	}
	after := func(s string) http.Header { return http.Header{"Retry-After": {s}} }
	of := func(length int64, a answer) answer { // as long as it says
		return func(f *flaky) func(*http.Request) (*http.Response, error) {
			return func(req *http.Request) (*http.Response, error) {
				resp, err := a(f)(req)
				resp.ContentLength = length
				return resp, err
			}
		}
	}
	text := func(retryAfter string) answer { // reads like a problem
		return func(f *flaky) func(*http.Request) (*http.Response, error) {
			_, body := problem("outcome-unknown", "")
			return f.status(409, after(retryAfter), body)
		}
	}
	_, noScheme := new(http.Transport).RoundTrip(&http.Request{URL: &url.URL{Scheme: "ftp", Host: "pay.example"}, Header: http.Header{}})
	tests := []struct {
		name    string
		answer  answer
		again   bool
		atLeast time.Duration
	}{
		{"in progress", refusal(409, "in-progress", "2"), true, 2 * time.Second},
		{"in progress, without a time", refusal(409, "in-progress", ""), true, 0},
		{"in progress, of unknown length", of(-1, refusal(409, "in-progress", "2")), true, 2 * time.Second},
		{"a problem without a code, with a time", refusal(409, "", "2"), true, 2 * time.Second},
		{"a text with a time", text("2"), true, 2 * time.Second},
		{"409 with a time", plain(409, after("3")), true, 3 * time.Second},
		{"429", plain(429, nil), true, 0},
		{"429 with a time", plain(429, after("4")), true, 4 * time.Second},
		{"429 too-many-open", refusal(429, "too-many-open", "1"), true, time.Second},
		{"502", plain(502, nil), true, 0},
		{"503", plain(503, after("1")), true, time.Second},
		{"503 store-lost", refusal(503, "store-lost", "1"), true, time.Second},
		{"503 with nonsense", plain(503, after("soon")), true, 0},
		{"503 with a date", plain(503, after("Sat, 01 Jan 2000 00:00:03 GMT")), true, 3 * time.Second}, // the time of synctest is 2000
		{"503 with a date that has passed", plain(503, after("Thu, 01 Jan 1970 00:00:00 GMT")), true, 0},
		{"504", plain(504, nil), true, 0},
		{"503 that is stored", plain(503, http.Header{"Idempotent-Replayed": {"true"}, "Retry-After": {"1"}}), false, 0},
		{"the connection breaks", failure(io.ErrUnexpectedEOF), true, 0},
		{"the connection is refused", failure(&net.OpError{Op: "dial", Err: errors.New("refused")}), true, 0},
		{"the response breaks off", of(4, plain(201, nil)), true, 0},
		{"the response breaks off in its trailers", func(f *flaky) func(*http.Request) (*http.Response, error) {
			return func(req *http.Request) (*http.Response, error) {
				resp := f.respond(req, 201, nil, "done")
				resp.Body = closer{io.MultiReader(resp.Body, errorReader{}), f}
				return resp, nil
			}
		}, true, 0},

		{"201", plain(201, nil), false, 0},
		{"400", plain(400, after("1")), false, 0},
		{"408", plain(408, nil), true, 0},
		{"499", plain(499, nil), true, 0},
		{"500", plain(500, nil), true, 0},
		{"501", plain(501, nil), true, 0},
		{"409", plain(409, nil), false, 0},
		{"outcome unknown", refusal(409, "outcome-unknown", ""), false, 0},
		{"outcome unknown, of unknown length", of(-1, refusal(409, "outcome-unknown", "1")), true, time.Second},
		{"a problem without a code", refusal(409, "", ""), false, 0},
		{"outcome unknown, with a time", refusal(409, "outcome-unknown", "1"), true, time.Second},
		{"key expired", refusal(409, "key-expired", ""), false, 0},
		{"result unavailable", refusal(409, "result-unavailable", ""), false, 0},
		{"key reused", refusal(422, "key-reused", "1"), false, 0},
		{"500 with a time", plain(500, after("1")), true, time.Second},
		{"402", plain(402, nil), false, 0},
		{"503 for too long", plain(503, after("3600")), false, 0},
		{"503 for ever", plain(503, after("99999999999999999")), false, 0},
		{"canceled", failure(context.Canceled), false, 0},
		{"TLS with a server of HTTP", failure(http.ErrSchemeMismatch), false, 0},
		{"no scheme of HTTP", failure(noScheme), false, 0},
		{"a certificate", failure(fmt.Errorf("tls: %w", &tls.CertificateVerificationError{Err: hostnameError})), false, 0},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				f := &flaky{}
				f.answers = []func(*http.Request) (*http.Response, error){tt.answer(f)}
				resp, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(post(t, t.Context(), "body"))
				if !tt.again {
					if len(f.times) != 1 {
						t.Errorf("%d attempts, want 1", len(f.times))
					}
					if err == nil {
						if b, err := io.ReadAll(resp.Body); err != nil || len(b) == 0 {
							t.Errorf("body = %q, %v, want the server's", b, err)
						}
						resp.Body.Close()
					}
				} else {
					if err != nil || resp.StatusCode != 201 {
						t.Fatalf("RoundTrip() = %v, %v, want 201", resp, err)
					}
					resp.Body.Close()
					if len(f.keys) != 2 || f.keys[0] != f.keys[1] || f.keys[0] == "" || !slices.Equal(f.bodies, []string{"body", "body"}) {
						t.Errorf("keys %q, bodies %q, want the same twice", f.keys, f.bodies)
					}
					if d := f.times[1]; d < tt.atLeast || d > tt.atLeast+100*time.Millisecond {
						t.Errorf("second attempt after %v, want %v and up to 100 ms", d, tt.atLeast)
					}
				}
				if f.open != 0 {
					t.Errorf("%d responses were not closed", f.open)
				}
			})
		})
	}
}

func TestTransportBounds(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		f.answers = slices.Repeat([]func(*http.Request) (*http.Response, error){f.status(503, nil, "busy")}, 1000)
		resp, err := idemhttp.MustNewTransport(f, honoured, nil, idemhttp.WithRetryElapsed(0)).RoundTrip(post(t, t.Context(), ""))
		if err != nil || resp.StatusCode != 503 || len(f.times) != 1 {
			t.Fatalf("RoundTrip() = %v, %v after %d attempts, want 503 after one", resp, err, len(f.times))
		}
		if b, _ := io.ReadAll(resp.Body); string(b) != "busy" {
			t.Errorf("body = %q, want the last one", b)
		}
		resp.Body.Close()

		f.times = nil
		resp, err = idemhttp.MustNewTransport(f, honoured, idemhttp.WithRetryElapsed(10*time.Second), idemhttp.WithRetryBackoff(time.Second, time.Second)).
			RoundTrip(post(t, t.Context(), ""))
		if took := f.times[len(f.times)-1]; err != nil || took > 10*time.Second || len(f.times) < 10 {
			t.Errorf("%d attempts in %v, want at least 10 in 10 s", len(f.times), took)
		}
		resp.Body.Close()

		f.times = nil
		resp, err = idemhttp.MustNewTransport(f, honoured, idemhttp.WithRetryElapsed(8*time.Microsecond), idemhttp.WithRetryBackoff(time.Nanosecond, time.Microsecond)).
			RoundTrip(post(t, t.Context(), ""))
		if took := f.times[len(f.times)-1]; err != nil || took > 8*time.Microsecond || len(f.times) < 9 {
			t.Errorf("%d attempts in %v, want at least 9 within 8 microseconds", len(f.times), took)
		}
		resp.Body.Close()
	})
}

func TestTransportStopsWithItsContext(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		f := &flaky{}
		f.answers = []func(*http.Request) (*http.Response, error){f.status(503, http.Header{"Retry-After": {"10"}}, "busy")}
		ctx, cancel := context.WithCancel(t.Context())
		time.AfterFunc(time.Second, cancel)
		_, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(post(t, ctx, ""))
		if !errors.Is(err, context.Canceled) || len(f.times) != 1 || time.Since(f.began) != time.Second || f.open != 0 {
			t.Errorf("RoundTrip() = %v after %d attempts and %v, want an end after 1 s", err, len(f.times), time.Since(f.began))
		}
		ctx, cancel = context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		f.times = nil
		resp, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(post(t, ctx, ""))
		if err != nil || resp.StatusCode != 503 || time.Since(f.began) != 0 {
			t.Errorf("RoundTrip() = %v, %v after %v, want 503 at once: the deadline comes first", resp, err, time.Since(f.began))
		}
		resp.Body.Close()
	})
}

func TestTransportKeys(t *testing.T) {
	t.Parallel()
	f := &flaky{}
	quick := idemhttp.WithRetryBackoff(time.Microsecond, time.Millisecond)
	send := func(method string, change func(*http.Request), opts ...idemhttp.TransportOption) string {
		t.Helper()
		f.keys = nil
		req := post(t, t.Context(), "x")
		req.Method = method
		if change != nil {
			change(req)
		}
		before := req.Header.Clone()
		resp, err := idemhttp.MustNewTransport(f, append(opts, honoured)...).RoundTrip(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if fmt.Sprint(req.Header) != fmt.Sprint(before) {
			t.Errorf("the caller's header was changed to %v", req.Header)
		}
		return f.keys[0]
	}
	uuid := regexp.MustCompile(`^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$`)
	for method, want := range map[string]bool{"POST": true, "PATCH": true, "GET": false, "PUT": false, "DELETE": false, "": false} {
		if key := send(method, nil); uuid.MatchString(key) != want || !want && key != "" {
			t.Errorf("%s has key %q, want one: %v", method, key, want)
		}
	}
	if a, b := send("POST", nil), send("POST", nil); a == b {
		t.Errorf("two requests have one key %q", a)
	}
	if key := send("PUT", nil, idemhttp.WithKeyedMethods("PUT")); key == "" {
		t.Error("PUT has no key")
	}
	if key := send("POST", nil, idemhttp.WithKeyedMethods("PUT")); key != "" {
		t.Errorf("POST has key %q", key)
	}
	if key := send("GET", func(r *http.Request) { r.Header.Set("Idempotency-Key", "mine") }); key != "mine" {
		t.Errorf("key = %q, want the caller's", key)
	}
	f.times, f.answers = nil, []func(*http.Request) (*http.Response, error){f.status(503, nil, "busy")}
	if key := send("PUT", func(r *http.Request) { r.Header.Set("Idempotency-Key", "mine") }, quick); key != "mine" || !slices.Equal(f.keys, []string{"mine", "mine"}) {
		t.Errorf("keys = %q, want the caller's twice", f.keys)
	}
	if key := send("POST", func(r *http.Request) { r.Header["Idempotency-Key"] = nil }); key != "" {
		t.Errorf("key = %q, want none", key)
	}
	if key := send("POST", func(r *http.Request) { r.Header = http.Header{"X-Key": {"k"}} }, idemhttp.WithHeader("x-key")); key != "" {
		t.Errorf("key = %q, want it in another header", key)
	}
}

func TestTransportSendsWithoutAKeyOnce(t *testing.T) {
	t.Parallel()
	f := &flaky{}
	f.answers = []func(*http.Request) (*http.Response, error){f.status(503, nil, "busy")}
	req := post(t, t.Context(), "")
	req.Method = http.MethodGet
	resp, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(req)
	if err != nil || resp.StatusCode != 503 || len(f.times) != 1 {
		t.Errorf("RoundTrip() = %v, %v after %d attempts, want 503 at once", resp, err, len(f.times))
	}
	resp.Body.Close()
	f = &flaky{answers: []func(*http.Request) (*http.Response, error){fails(io.ErrUnexpectedEOF)}}
	if _, err := idemhttp.MustNewTransport(f, honoured).RoundTrip(req); !errors.Is(err, io.ErrUnexpectedEOF) || len(f.times) != 1 {
		t.Errorf("RoundTrip() = %v after %d attempts, want %v at once", err, len(f.times), io.ErrUnexpectedEOF)
	}
}

// long is as long as what the transport keeps in memory.
var long = strings.Repeat("12345678", 1<<17)

func TestTransportOptionsThatContradictThemselves(t *testing.T) {
	t.Parallel()
	for name, opt := range map[string]idemhttp.TransportOption{
		"a negative time": idemhttp.WithRetryElapsed(-1),
		"no back-off":     idemhttp.WithRetryBackoff(0, 0),
		"a header":        idemhttp.WithHeader("a b"),
		"no header":       idemhttp.WithHeader(""),
		"no method":       idemhttp.WithKeyedMethods(),
		"a wrong method":  idemhttp.WithKeyedMethods("POST", "put"),
		"a URL":           idemhttp.WithKeysHonoured("bank.example", "https://bank.example"),
		"a path":          idemhttp.WithKeysHonoured("bank.example/v1"),
		"no host":         idemhttp.WithKeysHonoured(""),
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s: no panic", name)
				}
			}()
			idemhttp.MustNewTransport(nil, opt)
		}()
	}
	if _, err := idemhttp.NewTransport(nil, idemhttp.WithKeysHonoured("bank.example", "bank.example:8443", "10.0.0.1", "::1", "[::1]", "[::1]:8443")); err != nil {
		t.Errorf("NewTransport() = %v, want every host accepted", err)
	}
}

// A client closes the idle connections of the transport below, if that has any.
func TestTransportClosesIdleConnections(t *testing.T) {
	t.Parallel()
	base := &idle{}
	(&http.Client{Transport: idemhttp.MustNewTransport(base, honoured)}).CloseIdleConnections()
	if !base.closed {
		t.Error("the idle connections are open")
	}
	idemhttp.MustNewTransport(&flaky{}).CloseIdleConnections()
}

type idle struct {
	http.RoundTripper
	closed bool
}

func (i *idle) CloseIdleConnections() { i.closed = true }
