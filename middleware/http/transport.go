package idemhttp

import (
	"fmt"
	"net/http"

	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// Transport is an [http.RoundTripper] that makes retries safe. It gives every logical
// request one idempotency key, and sends the request again if that may help.
//
//	client := &http.Client{Transport: idemhttp.NewTransport(nil)}
//
// By default requests of POST and PATCH get a key ([WithKeyedMethods]). A key that the
// caller has set is kept, for any method. A key header that is set to no values at all
// switches the transport off for the request. Inside a handler that an [idem.Engine]
// runs, the key is derived from the operation and from "METHOD host/path"
// ([idem.DownstreamKey]), so that the next attempt of the same operation sends the same
// key. Two different requests to one path from one handler therefore need a name each
// ([WithCallName]) or keys of their own. Otherwise the server takes the second for a
// repeat of the first, or refuses it. When that handler has returned, the transport sends
// nothing more that may have an effect, and returns [idem.ErrExecutionEnded]. Outside of
// a handler the key is random.
//
// A request with a key is sent again after
//
//   - an error of the connection, or a connection that breaks within a response of known
//     length (see [WithResponseBuffer]);
//   - 429, 502, 503 and 504;
//   - 409 with the code "in-progress", or without a code and with Retry-After.
//
// It is never sent again after anything else: not after 422, not if the outcome is
// unknown or has expired, not after a response with Idempotent-Replayed, which is stored
// and will not change, and not when the request's context has ended. The transport waits
// as long as Retry-After says, and for a random part of a back-off that doubles.
// [WithRetryAttempts], [WithRetryBackoff] and [WithRetryElapsed] set bounds. The caller
// gets the last response.
//
// The body is sent again from [http.Request.GetBody], which [http.NewRequest] sets for
// bodies in memory. Any other body is read into memory up to [WithRequestBuffer]. A
// longer body is sent once.
//
// Requests without a key are handed on as they are. A redirect that the [http.Client]
// follows is a request of its own. A Transport is safe for concurrent use.
type Transport struct {
	base    http.RoundTripper
	options transportOptions
}

var _ http.RoundTripper = (*Transport)(nil)

// NewTransport returns a transport that sends through base. nil stands for
// [http.DefaultTransport]. base bounds the time of an attempt, as
// [http.Transport].ResponseHeaderTimeout does. NewTransport panics on options that
// contradict themselves.
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
	nextBody, more, err := bodies(req, t.options.requestBuffer)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: reading the request body: %w", err)
	}
	ctx, call := req.Context(), t.options.retry.Start()
	for {
		attempt := req.WithContext(ctx)
		attempt.Header = header
		if attempt.Body, err = nextBody(); err != nil {
			return nil, fmt.Errorf("idemhttp: getting the request body again: %w", err)
		}
		resp, err := t.base.RoundTrip(attempt)
		if err == nil {
			err = t.preload(resp)
		}
		pause, again := verdict(resp, err)
		if again = again && more; again {
			pause, again = call.Next(ctx, pause)
		}
		if !again {
			if err != nil && resp != nil { // the response could not be read
				_ = resp.Body.Close()
				resp = nil
			}
			return resp, err
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

// keyed returns the headers to send with a key in them, or nil for a request without a
// key. After an error nothing may be sent.
func (t *Transport) keyed(req *http.Request) (http.Header, error) {
	o := &t.options
	method := req.Method
	if method == "" {
		method = http.MethodGet
	}
	values, set := req.Header[o.header]
	if len(values) > 0 {
		return req.Header, resend.Gate(req.Context())
	}
	if set || !o.methods[method] {
		switch method {
		case http.MethodGet, http.MethodHead, http.MethodOptions, http.MethodTrace: // no effect: RFC 9110, section 9.2.1
			return nil, nil
		}
		return nil, resend.Gate(req.Context())
	}
	name := ""
	if o.callName != nil {
		name = o.callName(req)
	}
	if name == "" {
		host := req.Host
		if host == "" {
			host = req.URL.Host
		}
		name = method + " " + host + req.URL.EscapedPath()
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
