package idemhttp

import (
	"cmp"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/internal/hostport"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// Transport is an [http.RoundTripper] that gives every logical request one idempotency key. If
// you tell it that the server honours keys, it sends the request again with that key where this
// may help.
//
//	client := &http.Client{Transport: idemhttp.MustNewTransport(nil, idemhttp.WithKeysHonoured("bank.example"))}
//
// # Keys
//
// By default requests of POST and PATCH get a key ([WithKeyedMethods]). A key that the
// caller has set is kept, for any method. A key header that is set to no values at all
// switches the transport off for the request. Inside a handler that an [idem.Engine]
// runs, the key is derived from the operation and from "METHOD host/path?query"
// ([idem.DownstreamKeyFor]), so that the next attempt of the same operation sends the same
// key. If the query differs between attempts, as a timestamp does, name the request
// ([WithCallName]). A second request of the handler with the same name and another URL or body
// is not sent, and the error wraps [idem.ErrCallNameReused]. When the handler has returned, the
// transport sends nothing more that may have an effect, and returns [idem.ErrExecutionEnded].
// Outside of a handler the key is random.
//
// # Requests that are sent again
//
// Most services ignore a header that they do not know, and a repeat there is a second payment.
// The transport cannot know whether a server honours keys. So without [WithKeysHonoured] it
// sends each request once, except that it tries again to connect.
//
// At a server that honours keys a request with a key is sent again after
//
//   - an error of the connection
//   - a connection that breaks within a response of known length, up to 1 MiB. The transport reads
//     such a response before the caller gets it.
//   - 429, 502, 503 and 504, and 409 with the code "in-progress"
//   - 408, 409, 413, 425, 499 and all answers from 500 on that have Retry-After, such as an
//     unknown outcome on which a resolver works
//   - 408, 499 and all other answers from 500 on, but only once. A second try learns what became
//     of the first one.
//
// It is not sent again after any other answer, such as 422 or an unknown outcome that waits for
// a person. Do not take a new key for that operation, because it may have happened. An answer
// with Idempotent-Replayed is the outcome and does not change, so it is final. The transport
// waits as long as Retry-After says, and for a random part of a back-off that doubles.
// [WithRetryBackoff] and [WithRetryElapsed] set bounds, and so does the request's context. The caller gets the last response.
//
// The body is sent again from [http.Request.GetBody], which [http.NewRequest] sets for
// bodies in memory. Any other body is read into memory up to 1 MiB. A longer body is sent once.
//
// net/http by itself repeats a request that has an Idempotency-Key over each connection that it has
// kept, at any service. A transport directly on an [http.Transport]
// prevents that, also with another transport in between. With [WithKeysHonoured] and one in
// between, requests without a body are still repeated. Without it they are sent there without
// Content-Length in HTTP/1, which some servers refuse with 411, and as an empty body of unknown
// length in HTTP/2, which the middleware of this package refuses as internal. A body that is not
// empty avoids both.
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
// [http.Transport].ResponseHeaderTimeout does. The error is for options that contradict
// themselves.
func NewTransport(base http.RoundTripper, opts ...TransportOption) (*Transport, error) {
	t := &Transport{base: base, options: transportOptions{
		retry:   resend.Default(),
		methods: []string{http.MethodPost, http.MethodPatch},
		header:  exchange.DefaultHeader,
	}}
	if base == nil {
		t.base = http.DefaultTransport
	}
	adapter.Apply(&t.options, opts)
	if err := t.options.validate(); err != nil {
		return nil, fmt.Errorf("idemhttp: %w", err)
	}
	return t, nil
}

// MustNewTransport is [NewTransport] for known-good wiring. Like [regexp.MustCompile] it panics where
// NewTransport returns an error.
func MustNewTransport(base http.RoundTripper, opts ...TransportOption) *Transport {
	return adapter.Must(NewTransport(base, opts...))
}

// RoundTrip implements [http.RoundTripper].
func (t *Transport) RoundTrip(req *http.Request) (*http.Response, error) {
	kind, err := t.kindOf(req)
	if err != nil {
		closeBody(req)
		return nil, err
	}
	if kind == keyless {
		if _, set := req.Header[t.options.header]; set { // to no values, which net/http takes for a key
			req = req.WithContext(req.Context())
			req.Header = maps.Clone(req.Header)
			delete(req.Header, t.options.header)
		}
		return t.base.RoundTrip(req)
	}
	body, bodyAgain, err := repeatable(req)
	if err != nil {
		return nil, fmt.Errorf("idemhttp: reading the request body: %w", err)
	}
	header := req.Header
	if kind == keyMissing {
		if header, err = t.keyed(req, bodyAgain); err != nil {
			if body != nil {
				_ = body.Close()
			}
			return nil, err
		}
	}
	header, getBody, renamed := t.once(req, header)
	honoured := t.options.honours(req)
	ctx, call := req.Context(), t.options.retry.Start()
	for {
		attempt := req.WithContext(ctx)
		attempt.Header, attempt.Body, attempt.GetBody = header, body, getBody
		if !honoured && !renamed {
			sendOnce(attempt)
		}
		resp, head, err := t.send(attempt)
		advice := verdict(resp, head, err)
		if bodyAgain == nil || !honoured && !neverConnected(err) {
			advice.Again = false
		}
		pause, again := call.Next(ctx, advice)
		if !again {
			return resp, err
		}
		if resp != nil {
			_ = resp.Body.Close()
		}
		if err := resend.Wait(ctx, pause); err != nil {
			return nil, err
		}
		if body, err = bodyAgain(); err != nil {
			return nil, fmt.Errorf("idemhttp: getting the request body again: %w", err)
		}
	}
}

// once returns what an attempt has in place of header and [http.Request.GetBody], so that net/http
// sends it once. By itself, net/http sends a request without a body, or with GetBody, once more over
// each connection that it has kept, if its Header has one of two names (see [http.Transport]). Names
// in lower case are the same headers to a server. A transport in between may look for the usual
// name, so there GetBody goes instead, and renamed is false.
func (t *Transport) once(req *http.Request, header http.Header) (_ http.Header, getBody func() (io.ReadCloser, error), renamed bool) {
	if _, last := t.base.(*http.Transport); !last {
		return header, nil, false
	}
	header = maps.Clone(header)
	for _, name := range []string{"Idempotency-Key", "X-Idempotency-Key"} {
		if values, ok := header[name]; ok {
			delete(header, name)
			header[strings.ToLower(name)] = values
		}
	}
	return header, req.GetBody, true
}

// CloseIdleConnections is for [http.Client.CloseIdleConnections].
func (t *Transport) CloseIdleConnections() {
	if c, ok := t.base.(interface{ CloseIdleConnections() }); ok {
		c.CloseIdleConnections()
	}
}

// keyKind says where the key of a request comes from.
type keyKind int

const (
	keyless    keyKind = iota // it has none, and gets none
	keyGiven                  // by the caller
	keyMissing                // the transport makes it
)

// kindOf says where the key of a request comes from. After an error nothing may be sent.
func (t *Transport) kindOf(req *http.Request) (keyKind, error) {
	o, method := &t.options, cmp.Or(req.Method, http.MethodGet)
	values, set := req.Header[o.header]
	switch {
	case len(values) > 0:
		return keyGiven, resend.Gate(req.Context())
	case !set && slices.Contains(o.methods, method):
		return keyMissing, nil
	case adapter.IsSafe(method):
		return keyless, nil
	}
	return keyless, resend.Gate(req.Context())
}

// keyed returns the headers to send, with a new key in them. After an error nothing may be sent.
func (t *Transport) keyed(req *http.Request, bodyAgain func() (io.ReadCloser, error)) (http.Header, error) {
	o, name := &t.options, ""
	if o.callName != nil {
		name = o.callName(req)
	}
	if name == "" {
		name = cmp.Or(req.Method, http.MethodGet) + " " + cmp.Or(req.Host, req.URL.Host) + req.URL.EscapedPath()
		if req.URL.RawQuery != "" {
			name += "?" + req.URL.RawQuery
		}
	}
	key, err := resend.Key(req.Context(), name, func() ([sha256.Size]byte, error) { return hashOf(req, bodyAgain) })
	if err != nil {
		return nil, err
	}
	header := req.Header.Clone()
	if header == nil {
		header = http.Header{}
	}
	header[o.header] = []string{key}
	return header, nil
}

// honours reports whether the server of a request is known to honour keys.
func (o *transportOptions) honours(req *http.Request) bool {
	if !o.honoured || len(o.hosts) == 0 {
		return o.honoured
	}
	return slices.ContainsFunc(o.hosts, func(host string) bool {
		return strings.EqualFold(host, req.URL.Host) || strings.EqualFold(host, req.URL.Hostname())
	})
}

// maxBuffer bounds, in bytes, a request body that is kept in memory to be sent again, and a response
// that is read before the caller gets it.
const maxBuffer = 1 << 20

// TransportOption changes a [Transport]. A nil option is ignored.
type TransportOption func(*transportOptions)

type transportOptions struct {
	retry    resend.Policy
	honoured bool     // the servers honour keys
	hosts    []string // these servers do; empty stands for all
	methods  []string
	header   string
	callName func(*http.Request) string
}

// WithKeysHonoured states that the servers honour keys: a request that comes a second time with
// the key of the first one has no second effect. Then the transport sends requests again. The
// hosts, with or without a port and never with a scheme or a path, bound the statement. Without any it is about every server that
// this transport is used for.
func WithKeysHonoured(hosts ...string) TransportOption {
	return func(o *transportOptions) { o.honoured, o.hosts = true, slices.Clone(hosts) }
}

// WithRetryBackoff sets the longest pause before the second attempt, and the longest
// pause to which it doubles. The defaults are 100 ms and 5 s. The pause is a random part
// of it, in addition to the pause from the server.
func WithRetryBackoff(first, most time.Duration) TransportOption {
	return func(o *transportOptions) { o.retry.First, o.retry.Most = first, most }
}

// WithRetryElapsed bounds the time in which attempts start, counted from the first one.
// The default is 1 minute, and with 0 each request is sent once. The request's context bounds it as well.
func WithRetryElapsed(d time.Duration) TransportOption {
	return func(o *transportOptions) { o.retry.Elapsed = d }
}

// WithKeyedMethods lists the methods whose requests get a key. The default is POST and
// PATCH. PUT and DELETE are idempotent by definition (RFC 9110, section 9.2.2), although
// not every service keeps to that.
func WithKeyedMethods(methods ...string) TransportOption {
	return func(o *transportOptions) { o.methods = slices.Clone(methods) }
}

// WithHeader names the request header with the key. The default is Idempotency-Key.
func WithHeader(name string) TransportOption {
	return func(o *transportOptions) { o.header = http.CanonicalHeaderKey(name) }
}

// WithCallName names a request, for the key derived inside of an execution. The name has to
// be the same for every attempt of the operation, and to differ for different requests of
// one execution. The default, also for "", is "METHOD host/path?query" as it is sent.
func WithCallName(fn func(*http.Request) string) TransportOption {
	return func(o *transportOptions) { o.callName = fn }
}

// isHost reports whether s names a host, with or without a port.
func isHost(s string) bool {
	host, port, err := net.SplitHostPort(s)
	if err != nil {
		host, port = strings.Trim(s, "[]"), "443"
	}
	return hostport.Check(host, port) == nil
}

func (o *transportOptions) validate() error {
	switch {
	case !adapter.IsToken(o.header):
		return fmt.Errorf("%q is not a header name", o.header)
	case len(o.methods) == 0:
		return errors.New("no methods: no request would get a key")
	}
	if err := adapter.CheckMethods(o.methods); err != nil {
		return err
	}
	for _, host := range o.hosts {
		if !isHost(host) {
			return fmt.Errorf("WithKeysHonoured: %q is not a host, with or without a port, such as bank.example or bank.example:8443", host)
		}
	}
	return o.retry.Validate()
}
