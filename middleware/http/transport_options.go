package idemhttp

import (
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// Buffers of a [Transport], in bytes.
const (
	DefaultRequestBuffer  = 1 << 20
	DefaultResponseBuffer = 1 << 20
)

// TransportOption changes a [Transport]. A nil option is ignored.
type TransportOption func(*transportOptions)

type transportOptions struct {
	retry          resend.Policy
	methods        map[string]bool
	header         string
	quoted         bool
	callName       func(*http.Request) string
	requestBuffer  int64
	responseBuffer int64
}

func defaultTransportOptions() transportOptions {
	return transportOptions{
		retry:          resend.Default(),
		methods:        map[string]bool{http.MethodPost: true, http.MethodPatch: true},
		header:         exchange.DefaultHeader,
		requestBuffer:  DefaultRequestBuffer,
		responseBuffer: DefaultResponseBuffer,
	}
}

// WithRetryAttempts bounds how often a request is sent, the first time included. The
// default of 100 leaves it to the time ([WithRetryElapsed]) to bound a request. With 1
// the transport only adds keys.
func WithRetryAttempts(n int) TransportOption {
	return func(o *transportOptions) { o.retry.Attempts = n }
}

// WithRetryBackoff sets the longest pause before the second attempt, and the longest
// pause to which it doubles. The defaults are 100 ms and 5 s. The pause is a random part
// of it, in addition to the pause from the server.
func WithRetryBackoff(first, most time.Duration) TransportOption {
	return func(o *transportOptions) { o.retry.First, o.retry.Most = first, most }
}

// WithRetryElapsed bounds the time in which attempts start, counted from the first one.
// The default is 1 minute. The request's context bounds it as well.
func WithRetryElapsed(d time.Duration) TransportOption {
	return func(o *transportOptions) { o.retry.Elapsed = d }
}

// WithKeyedMethods lists the methods whose requests get a key. The default is POST and
// PATCH. PUT and DELETE are idempotent by definition (RFC 9110, section 9.2.2), although
// not every service keeps to that.
func WithKeyedMethods(methods ...string) TransportOption {
	return func(o *transportOptions) {
		o.methods = make(map[string]bool, len(methods))
		for _, m := range methods {
			o.methods[m] = true
		}
	}
}

// WithKeyHeader names the request header with the key. The default is Idempotency-Key.
func WithKeyHeader(name string) TransportOption {
	return func(o *transportOptions) { o.header = http.CanonicalHeaderKey(name) }
}

// WithQuotedKeys sends keys as quoted strings, as
// draft-ietf-httpapi-idempotency-key-header wants them. The default is the bare key, as
// most services expect it. This package takes both.
func WithQuotedKeys() TransportOption {
	return func(o *transportOptions) { o.quoted = true }
}

// WithCallName names a request, for the key derived inside of an execution. The name has to be the same for every attempt of the operation, and to
// differ for different requests of one execution. The default, also for "", is "METHOD
// host/path" with the path escaped as it is sent.
func WithCallName(fn func(*http.Request) string) TransportOption {
	return func(o *transportOptions) { o.callName = fn }
}

// WithRequestBuffer bounds the body in memory if GetBody is not set. The
// default is DefaultRequestBuffer. A longer body is sent once.
func WithRequestBuffer(bytes int64) TransportOption {
	return func(o *transportOptions) { o.requestBuffer = bytes }
}

// WithResponseBuffer bounds the response that is read before the caller gets it. If the
// connection breaks within such a response, the request can be sent again. The default
// is DefaultResponseBuffer. Responses of unknown length may never end. The caller gets
// them as they come.
func WithResponseBuffer(bytes int64) TransportOption {
	return func(o *transportOptions) { o.responseBuffer = bytes }
}

func (o *transportOptions) validate() error {
	switch {
	case o.requestBuffer < 0 || o.responseBuffer < 0:
		return errors.New("a buffer cannot be negative")
	case !adapter.IsToken(o.header):
		return fmt.Errorf("%q is not a header name", o.header)
	}
	return o.retry.Validate()
}

// form returns a key in the form in which it is sent.
func (o *transportOptions) form(key string) string {
	if o.quoted {
		return idem.Key(key).Quoted()
	}
	return key
}
