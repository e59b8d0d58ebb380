package idemgrpc

import (
	"context"
	"errors"
	"strings"
	"time"

	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// ClientOption changes the client interceptors. A nil option is ignored.
type ClientOption func(*clientOptions)

type clientOptions struct {
	retry          resend.Policy
	attemptTimeout time.Duration
	metadataKey    string
	keyed          func(method string) bool
	callName       func(ctx context.Context, method string) string
}

func defaultClientOptions() clientOptions {
	return clientOptions{retry: resend.Default(), metadataKey: DefaultMetadataKey, keyed: hasEffects}
}

// WithRetryAttempts bounds how often a call is sent, the first time included. The default
// of 100 leaves it to the time ([WithRetryElapsed]) to bound a call. With 1 the
// interceptors only add keys.
func WithRetryAttempts(n int) ClientOption {
	return func(o *clientOptions) { o.retry.Attempts = n }
}

// WithRetryBackoff sets the longest pause before the second attempt, and the longest
// pause to which it doubles. The defaults are 100 ms and 5 s. The pause is a random part
// of it, in addition to the pause from the server.
func WithRetryBackoff(first, most time.Duration) ClientOption {
	return func(o *clientOptions) { o.retry.First, o.retry.Most = first, most }
}

// WithRetryElapsed bounds the time in which attempts start, counted from the first one.
// The default is 1 minute. The call's context bounds it as well.
func WithRetryElapsed(d time.Duration) ClientOption {
	return func(o *clientOptions) { o.retry.Elapsed = d }
}

// WithAttemptTimeout ends a unary attempt without an answer in time, and lets another one
// follow. It is for servers that hang. By default only the call's context ends an
// attempt.
func WithAttemptTimeout(d time.Duration) ClientOption {
	return func(o *clientOptions) { o.attemptTimeout = d }
}

// WithKeyedMethods says which methods get a key, by their full names. By default all
// methods do, except those whose descriptor says idempotency_level = NO_SIDE_EFFECTS, and
// those of gRPC's own services.
func WithKeyedMethods(fn func(method string) bool) ClientOption {
	return func(o *clientOptions) { o.keyed = fn }
}

// WithClientMetadataKey names the metadata with the key. The default is
// [DefaultMetadataKey].
func WithClientMetadataKey(name string) ClientOption {
	return func(o *clientOptions) { o.metadataKey = name }
}

// WithCallName names a call, for the key derived inside of an execution. The name has to be the same for every attempt of the operation, and to
// differ for different calls of one execution. The default, also for "", is the full name
// of the method.
func WithCallName(fn func(ctx context.Context, method string) string) ClientOption {
	return func(o *clientOptions) { o.callName = fn }
}

func (o *clientOptions) validate() error {
	switch {
	case !isMetadataName(o.metadataKey):
		return errors.New("the name of the key's metadata is not one that can hold text")
	case o.keyed == nil:
		return errors.New("no function says which methods get a key")
	case o.attemptTimeout < 0:
		return errors.New("the time-out of an attempt is negative")
	}
	return o.retry.Validate()
}

// hasEffects is false for a method that is declared to have no side effects.
func hasEffects(method string) bool {
	return !strings.HasPrefix(method, "/grpc.") && !readOnly(findMethod(method))
}
