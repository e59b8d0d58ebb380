package idemhttp_test

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

// flaky answers requests one after the other, without a network, and notes
// keys, bodies and times of attempts.
type flaky struct {
	answers []func(*http.Request) (*http.Response, error)
	keys    []string
	bodies  []string
	times   []time.Duration
	began   time.Time
	open    int // responses that were not closed
}

func (f *flaky) RoundTrip(req *http.Request) (*http.Response, error) {
	i := len(f.times)
	if i == 0 {
		f.began = time.Now()
	}
	f.times = append(f.times, time.Since(f.began))
	f.keys = append(f.keys, req.Header.Get("Idempotency-Key"))
	if req.Body != nil {
		b, err := io.ReadAll(req.Body)
		if err != nil {
			return nil, err
		}
		f.bodies = append(f.bodies, string(b))
		req.Body.Close()
	}
	if i >= len(f.answers) {
		return f.respond(req, 201, nil, "done"), nil
	}
	return f.answers[i](req)
}

type closer struct {
	io.Reader
	f *flaky
}

func (c closer) Close() error {
	c.f.open--
	return nil
}

func (f *flaky) respond(req *http.Request, status int, header http.Header, body string) *http.Response {
	f.open++
	if header == nil {
		header = http.Header{}
	}
	return &http.Response{StatusCode: status, Header: header, Body: closer{strings.NewReader(body), f}, ContentLength: int64(len(body)), Request: req}
}

func (f *flaky) status(status int, header http.Header, body string) func(*http.Request) (*http.Response, error) {
	return func(req *http.Request) (*http.Response, error) { return f.respond(req, status, header, body), nil }
}

func fails(err error) func(*http.Request) (*http.Response, error) {
	return func(*http.Request) (*http.Response, error) { return nil, err }
}

func post(t testing.TB, ctx context.Context, body string) *http.Request { //nolint:revive // t comes first in tests
	t.Helper()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, "http://pay.example/v1/payments", strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	return req
}

func problem(code string, retryAfter string) (http.Header, string) {
	h := http.Header{"Content-Type": {"application/problem+json; charset=utf-8"}}
	if retryAfter != "" {
		h.Set("Retry-After", retryAfter)
	}
	return h, fmt.Sprintf(`{"title":"t","code":%q}`, code)
}
