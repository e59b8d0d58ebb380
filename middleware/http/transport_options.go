package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// Buffers of a [Transport], in bytes.
const (
	DefaultRequestBuffer  = 1 << 20
	DefaultResponseBuffer = 1 << 20
)

// TransportOption changes what a [Transport] does. A nil option is ignored.
type TransportOption func(*transportOptions)

type transportOptions struct {
	retry          resend.Policy
	methods        map[string]struct{}
	header         string
	quoted         bool
	callName       func(*http.Request) string
	requestBuffer  int64
	responseBuffer int64
}

func defaultTransportOptions() transportOptions {
	return transportOptions{
		retry:          resend.Default(),
		methods:        map[string]struct{}{http.MethodPost: {}, http.MethodPatch: {}},
		header:         exchange.DefaultHeader,
		requestBuffer:  DefaultRequestBuffer,
		responseBuffer: DefaultResponseBuffer,
	}
}

// WithRetryAttempts bounds how often a request is sent, the first time
// included. 100 by default, so that it is the time ([WithRetryElapsed]) that
// bounds a request; 1 only adds keys.
func WithRetryAttempts(n int) TransportOption {
	return func(o *transportOptions) { o.retry.Attempts = n }
}

// WithRetryBackoff sets the longest pause before the second attempt, and the
// one to which that doubles. 100 ms and 5 s by default. The pause is a random
// part of it, beside what the server asks for.
func WithRetryBackoff(first, most time.Duration) TransportOption {
	return func(o *transportOptions) { o.retry.First, o.retry.Most = first, most }
}

// WithRetryElapsed bounds the time in which new attempts are made, from the
// first. 1 minute by default; the request's context bounds it as well.
func WithRetryElapsed(d time.Duration) TransportOption {
	return func(o *transportOptions) { o.retry.Elapsed = d }
}

// WithKeyedMethods names the methods whose requests get a key. POST and PATCH
// by default: PUT and DELETE are idempotent by definition (RFC 9110, section
// 9.2.2), although not every service keeps to that.
func WithKeyedMethods(methods ...string) TransportOption {
	return func(o *transportOptions) {
		o.methods = make(map[string]struct{}, len(methods))
		for _, m := range methods {
			o.methods[m] = struct{}{}
		}
	}
}

// WithKeyHeader names the request header that carries the key; by default
// Idempotency-Key.
func WithKeyHeader(name string) TransportOption {
	return func(o *transportOptions) { o.header = http.CanonicalHeaderKey(name) }
}

// WithQuotedKeys sends keys as the quoted strings that
// draft-ietf-httpapi-idempotency-key-header asks for. By default they are sent
// bare, which is what most services expect; this package takes both.
func WithQuotedKeys() TransportOption {
	return func(o *transportOptions) { o.quoted = true }
}

// WithCallName names what a request does, for the key that is derived inside of
// an execution. The name has to be the same for every attempt of the operation,
// and to differ for different requests of one execution. By default, and for
// "", it is "METHOD host/path", the path escaped as it is sent.
func WithCallName(fn func(*http.Request) string) TransportOption {
	return func(o *transportOptions) { o.callName = fn }
}

// WithRequestBuffer bounds the body that is read into memory where GetBody is
// not set; DefaultRequestBuffer by default. A longer one is sent once.
func WithRequestBuffer(bytes int64) TransportOption {
	return func(o *transportOptions) { o.requestBuffer = bytes }
}

// WithResponseBuffer bounds the response that is read before it is handed on,
// so that a connection which breaks in the middle of it is noticed in time to
// send the request again; DefaultResponseBuffer by default. It concerns
// responses whose Content-Length is known: others may never end, and are handed
// on as they come.
func WithResponseBuffer(bytes int64) TransportOption {
	return func(o *transportOptions) { o.responseBuffer = bytes }
}

func (o *transportOptions) validate() error {
	switch {
	case o.requestBuffer < 0 || o.responseBuffer < 0:
		return errors.New("a buffer cannot be negative")
	case o.header == "" || strings.ContainsAny(o.header, " :\r\n\t"):
		return fmt.Errorf("%q is not a header name", o.header)
	}
	return o.retry.Validate()
}

// form is a key as it is sent.
func (o *transportOptions) form(key string) string {
	if o.quoted {
		return idem.Key(key).Quoted()
	}
	return key
}
