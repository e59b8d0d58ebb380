package idemgrpc

import (
	"context"
	"errors"
	"maps"
	"time"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
	"github.com/idemkeeper/idemkeeper/middleware/internal/resend"
)

// DefaultMetadataKey is the metadata that carries the key. All metadata is in lower case.
const DefaultMetadataKey = "idempotency-key"

// ReplayedMetadataKey is in the header and in the trailer of an answer that is a stored
// outcome, with the value "true".
const ReplayedMetadataKey = "idempotent-replayed"

// Option changes the server interceptors. A nil option is ignored.
type Option func(*options)

type options struct {
	policies    map[string]idem.Policy
	fallback    *idem.Policy
	unknown     UnknownMethods
	exempt      []string
	metadataKey string
	keyFields   map[string]string // by method, or "" for all methods
	replay      []string
	anyMethod   bool
	status      []idem.Policy
}

func collect(opts []Option) options {
	o := options{metadataKey: DefaultMetadataKey, policies: map[string]idem.Policy{}, keyFields: map[string]string{}}
	adapter.Apply(&o, opts)
	return o
}

// UnknownMethods says what happens to a call of a method without a policy.
type UnknownMethods uint8

const (
	// PassUnknown runs it as without the interceptor.
	PassUnknown UnknownMethods = iota
	// RefuseUnknown refuses it as internal, with nothing executed, unless its descriptor
	// says that it has no side effects. A new method then fails instead of
	// running without protection.
	RefuseUnknown
)

// WithPolicy protects a method, named "/package.Service/Method". A policy without a Name
// gets the method. The last policy for a method counts.
//
// A method that streams requests is a wiring error. So is a method without generated code
// in this binary, because a typing error would leave a method without protection. See
// [WithUndescribedMethods].
func WithPolicy(method string, policy idem.Policy) Option {
	return func(o *options) { o.policies[method] = policy }
}

// WithPolicies is WithPolicy for each entry of a map from methods to policies.
func WithPolicies(policies map[string]idem.Policy) Option {
	policies = maps.Clone(policies)
	return func(o *options) { maps.Copy(o.policies, policies) }
}

// WithDefaultPolicy protects every method without a policy of its own. It leaves out
// methods that stream requests, methods whose descriptor says
// idempotency_level = NO_SIDE_EFFECTS, and gRPC's own services, such as
// grpc.health.v1.Health. A package of your own called grpc is protected. Without a default
// policy only named methods are protected.
func WithDefaultPolicy(policy idem.Policy) Option {
	return func(o *options) { o.fallback = &policy }
}

// WithUnknownMethods says what happens to methods without a policy. The default is
// PassUnknown.
func WithUnknownMethods(u UnknownMethods) Option {
	return func(o *options) { o.unknown = u }
}

// WithUndescribedMethods allows policies for methods without a descriptor in this binary,
// as of services written without protoc. They must be unary. A call that streams is refused.
func WithUndescribedMethods() Option {
	return func(o *options) { o.anyMethod = true }
}

// WithExempt names methods that run as without the interceptor and ignore keys. A name is
// "/package.Service/Method", or "/package.Service/*" for all of a service. The services of
// gRPC itself (health, reflection, channelz, load balancing, profiling) are exempt already,
// and the method of [RegisterStatusServer] always is.
func WithExempt(methods ...string) Option {
	return func(o *options) { o.exempt = append(o.exempt, methods...) }
}

// WithMetadataKey names the metadata with the key. The default is [DefaultMetadataKey].
func WithMetadataKey(name string) Option {
	return func(o *options) { o.metadataKey = name }
}

// WithKeyField reads the key from a string field of the request, such as "request_id" of
// AIP-155. It applies to the methods named, or else to every protected method whose
// request has such a field. If the field is not set, the key is that of the metadata. If
// both are set, they have to be equal. The field is no part of the fingerprint. By
// default no field is read.
func WithKeyField(field string, methods ...string) Option {
	return func(o *options) {
		if len(methods) == 0 {
			o.keyFields[""] = field
		}
		for _, m := range methods {
			o.keyFields[m] = field
		}
	}
}

// WithReplayMetadata adds header and trailer metadata to store and replay.
// The default is content-language, etag and location. Cookies, credentials and metadata
// of one exchange ("grpc-…", "date") are a wiring error.
func WithReplayMetadata(names ...string) Option {
	return func(o *options) { o.replay = append(o.replay, names...) }
}

// WithStatusPolicy tells [RegisterStatusServer] whether a route resolves its doubts. It is
// for routes with another policy than the server's. The route has the form in which its adapter
// names it, and can be of any transport. The policy's Name replaces it. The last policy
// for a route counts, and comes before [WithPolicy] for a method. The interceptors ignore
// the option.
func WithStatusPolicy(route string, policy idem.Policy) Option {
	return func(o *options) { o.status = append(o.status, policy.ForRoute(route)) }
}

func (o *options) validate() error {
	switch {
	case len(o.policies) == 0 && o.fallback == nil:
		return errors.New("no policy: nothing would be protected")
	case o.unknown > RefuseUnknown:
		return errors.New("unknown value for WithUnknownMethods")
	}
	if err := checkMetadataKey(o.metadataKey); err != nil {
		return err
	}
	return o.validateMethods()
}

func checkMetadataKey(name string) error {
	if !isMetadataName(name) {
		return errors.New("the name of the key's metadata is not one that can hold text")
	}
	return nil
}

// ClientOption changes the client interceptors. A nil option is ignored.
type ClientOption func(*clientOptions)

type clientOptions struct {
	retry          resend.Policy
	honoured       bool // the server honours keys
	attemptTimeout time.Duration
	metadataKey    string
	keyed          func(method string) bool
	callName       func(ctx context.Context, method string) string
}

// WithKeysHonoured states that the server honours keys: a call that comes a second time with the
// key of the first one has no second effect. Then the interceptors send calls again.
func WithKeysHonoured() ClientOption {
	return func(o *clientOptions) { o.honoured = true }
}

// WithRetryAttempts bounds the number of attempts, the first one included. The default
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

// WithCallName names a call, for the key derived inside of an execution. The name has to be
// the same for every attempt of the operation, and to differ for different calls of one
// execution. The default, also for "", is the full name
// of the method.
func WithCallName(fn func(ctx context.Context, method string) string) ClientOption {
	return func(o *clientOptions) { o.callName = fn }
}

func (o *clientOptions) validate() error {
	switch {
	case o.keyed == nil:
		return errors.New("no function says which methods get a key")
	case o.attemptTimeout < 0:
		return errors.New("the time-out of an attempt is negative")
	}
	if err := checkMetadataKey(o.metadataKey); err != nil {
		return err
	}
	return o.retry.Validate()
}
