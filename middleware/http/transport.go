package idemhttp

import (
	"fmt"
	"io"
	"net/http"

	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// Transport is an [http.RoundTripper] that makes retries safe: it gives every
// logical request one idempotency key, and sends the request again where that
// may help.
//
//	client := &http.Client{Transport: idemhttp.NewTransport(nil)}
//
// Keys are for POST and PATCH by default ([WithKeyedMethods]). A key that the
// caller has set is kept, for any method; one that is set to no values at all
// switches the transport off for the request. Inside a handler that an
// [idem.Engine] runs, the key is derived from the operation and from "METHOD
// host/path" ([idem.DownstreamKey]), so that the next attempt of the same
// operation sends the same key. Two different requests to one path from one
// handler therefore need a name each ([WithCallName]) or keys of their own:
// the server would take the second for a repeat of the first, or refuse it.
// Once that handler has returned nothing that may have an effect is sent any
// more: the error is [idem.ErrExecutionEnded]. Elsewhere the key is random.
//
// A request with a key is sent again after
//
//   - an error of the connection, a connection that breaks within a response of
//     known length (see [WithResponseBuffer]);
//   - 429, 502, 503 and 504;
//   - 409 with the code "in-progress", or without a code and with Retry-After;
//
// and never after anything else: not after 422, nor where the outcome is
// unknown or has expired, nor after a response that says Idempotent-Replayed,
// which is stored and will not change, nor when the request's context has ended. It waits as
// long as Retry-After says, and for a random part of a back-off that doubles;
// [WithRetryAttempts], [WithRetryBackoff] and [WithRetryElapsed] set bounds.
// The last response is the caller's, whatever its status.
//
// The body is sent again from [http.Request.GetBody], which
// [http.NewRequest] sets for bodies in memory. Any other body is read into
// memory up to [WithRequestBuffer]; what is longer is sent once.
//
// Requests without a key are handed on as they are. A redirect that the
// [http.Client] follows is a request of its own. A Transport is safe for
// concurrent use.
type Transport struct {
	base    http.RoundTripper
	options transportOptions
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport that sends by base; nil stands for
// [http.DefaultTransport]. How long an attempt may take is for base to say, as
// [http.Transport].ResponseHeaderTimeout does. It panics on options that
// contradict themselves, at start and never later.
func NewTransport(base http.RoundTripper, opts ...TransportOption) *Transport {
	t := &Transport{base: base, options: defaultTransportOptions()}
	if base == nil {
		t.base = http.DefaultTransport
	}
	for _, opt := range opts {
		if opt != nil {
			opt(&t.options)
		}
	}
	if err := t.options.validate(); err != nil {
		panic(fmt.Errorf("idemhttp: %w", err))
	}
	return t
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	header, err := t.keyed(req)
	if err != nil {
		if req.Body != nil {
			_ = req.Body.Close()
		}
		return nil, fmt.Errorf("idemhttp: nothing was sent: %w", err)
	}
	if header == nil {
		return t.base.RoundTrip(req)
	}
	body, err := readRequest(req, t.options.requestBuffer)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: reading the request body: %w", err)
	}
	ctx, call := req.Context(), t.options.retry.Start()
	for {
		attempt := req.WithContext(ctx)
		attempt.Header = header
		if attempt.Body, err = body.next(); err != nil {
			return nil, fmt.Errorf("idemhttp: getting the request body again: %w", err)
		}
		resp, err := t.base.RoundTrip(attempt)
		if err == nil {
			err = t.preload(resp)
		}
		asked, again := verdict(resp, err)
		if !again || !body.again() {
			return result(resp, err)
		}
		pause, again := call.Next(ctx, asked)
		if !again {
			return result(resp, err)
		}
		drain(resp, err)
		if err := resend.Sleep(ctx, pause); err != nil {
			return nil, err
		}
		if err := resend.Gate(ctx); err != nil {
			return nil, fmt.Errorf("idemhttp: nothing more was sent: %w", err)
		}
	}
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// gate notes that a request without a key, sent inside a handler that an engine
// runs, may have an effect (RFC 9110, section 9.2.1).
func gate(req *http.Request) error {
	switch methodOf(req) {
	case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace:
		return nil
	}
	return resend.Gate(req.Context())
}

// keyed returns the headers to send with a key in them, or nil for a request
// that has none. After an error nothing may be sent.
func (t *Transport) keyed(req *http.Request) (http.Header, error) {
	o := &t.options
	if values, set := req.Header[o.header]; set {
		if len(values) == 0 {
			return nil, gate(req)
		}
		return req.Header, resend.Gate(req.Context())
	}
	if _, ok := o.methods[methodOf(req)]; !ok {
		return nil, gate(req)
	}
	name := ""
	if o.callName != nil {
		name = o.callName(req)
	}
	if name == "" {
		name = methodOf(req) + " " + hostOf(req) + req.URL.EscapedPath()
	}
	key, err := resend.Key(req.Context(), name)
	if err != nil {
		return nil, err
	}
	header := req.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header[o.header] = []string{o.form(key)}
	return header, nil
}

func methodOf(req *http.Request) string {
	if req.Method == "" {
		return http.MethodGet
	}
	return req.Method
}

func hostOf(req *http.Request) string {
	if req.Host != "" {
		return req.Host
	}
	return req.URL.Host
}

// result is what the caller gets: a response that could not be read is none.
func result(resp *http.Response, err error) (*http.Response, error) {
	if err != nil && resp != nil {
		_ = resp.Body.Close()
		resp = nil
	}
	return resp, err
}

// drain reads what is left of a response, within reason, so that its connection
// can be used again.
func drain(resp *http.Response, err error) {
	if resp == nil {
		return
	}
	const enough = 64 << 10
	if err == nil {
		_, _ = io.CopyN(io.Discard, resp.Body, enough)
	}
	_ = resp.Body.Close()
}
