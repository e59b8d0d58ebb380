package idemgrpc

import (
	"errors"
	"maps"

	"github.com/idemkeeper/idemkeeper/idem"
)

// DefaultMetadataKey carries the key, in lower case as all metadata.
const DefaultMetadataKey = "idempotency-key"

// ReplayedMetadataKey is in the header of an answer that is a stored outcome,
// and in its trailer, with the value "true".
const ReplayedMetadataKey = "idempotent-replayed"

// Option changes what the server interceptors do. A nil option is ignored.
type Option func(*options)

type options struct {
	policies    map[string]idem.Policy
	fallback    *idem.Policy
	unknown     UnknownMethods
	exempt      []string
	metadataKey string
	keyFields   map[string]string // method, or "" for all, to field
	replay      []string
	anyMethod   bool
	status      []idem.Policy
}

func defaultOptions() options {
	return options{metadataKey: DefaultMetadataKey, policies: map[string]idem.Policy{}, keyFields: map[string]string{}}
}

// UnknownMethods says what happens to a call of a method that no policy covers.
type UnknownMethods uint8

const (
	// PassUnknown runs it as without the interceptor.
	PassUnknown UnknownMethods = iota
	// RefuseUnknown refuses it as internal, with nothing executed, unless its
	// descriptor says that it has no side effects. For servers that would
	// rather fail than run a new method without protection.
	RefuseUnknown
)

// WithPolicy protects a method, named "/package.Service/Method". The policy's
// Name, where it has none, is the method. The last one for a method counts.
//
// It is a wiring error to name a method that streams requests, or one that no
// generated code in this binary describes: a typing error would leave a method
// without protection. See [WithUndescribedMethods].
func WithPolicy(method string, policy idem.Policy) Option {
	return func(o *options) { o.policies[method] = policy }
}

// WithPolicies is WithPolicy for each entry of a map from methods to policies.
func WithPolicies(policies map[string]idem.Policy) Option {
	policies = maps.Clone(policies)
	return func(o *options) { maps.Copy(o.policies, policies) }
}

// WithDefaultPolicy protects every method that has no policy of its own and can
// be protected. Left out are methods that stream requests, methods whose
// descriptor says idempotency_level = NO_SIDE_EFFECTS, and gRPC's own services.
// By default there is none.
func WithDefaultPolicy(policy idem.Policy) Option {
	return func(o *options) { o.fallback = &policy }
}

// WithUnknownMethods says what happens to methods without a policy. The default
// is PassUnknown.
func WithUnknownMethods(u UnknownMethods) Option {
	return func(o *options) { o.unknown = u }
}

// WithUndescribedMethods allows policies for methods of which this binary has
// no descriptor, as of services that were written without protoc. They must be
// unary.
func WithUndescribedMethods() Option {
	return func(o *options) { o.anyMethod = true }
}

// WithExempt names methods that run as without the interceptor, whatever they
// carry: "/package.Service/Method", or "/package.Service/*" for all of a
// service. Those of gRPC's own services are exempt already, and that of
// [RegisterStatusServer] always is.
func WithExempt(methods ...string) Option {
	return func(o *options) { o.exempt = append(o.exempt, methods...) }
}

// WithMetadataKey names the metadata that carries the key. The default is
// [DefaultMetadataKey].
func WithMetadataKey(name string) Option {
	return func(o *options) { o.metadataKey = name }
}

// WithKeyField reads the key from a string field of the request, as AIP-155
// wants it with "request_id": of the methods named, else of every protected
// method whose request has such a field. Where the field is not set, the key is
// that of the metadata; where both are, they have to be equal. The field is no
// part of the fingerprint. By default no field is read.
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

// WithReplayMetadata adds to the header and trailer metadata that is stored and
// replayed. By default that is content-language, etag and location. Cookies,
// credentials and what belongs to one exchange ("grpc-…", "date") are a wiring
// error.
func WithReplayMetadata(names ...string) Option {
	return func(o *options) { o.replay = append(o.replay, names...) }
}

// WithStatusPolicy tells [RegisterStatusServer] by which policy it says of a
// route whether a resolver settles its attempts, where that differs from the
// policy that it is given. It is for routes of any transport: the policy's Name,
// where it has none, is the route, in the form that the adapter there gives it.
// The last one for a route counts, and comes before [WithPolicy] for a method.
// The interceptors take no notice of it.
func WithStatusPolicy(route string, policy idem.Policy) Option {
	if policy.Name == "" {
		policy.Name = recorded(route)
	}
	return func(o *options) { o.status = append(o.status, policy) }
}

func (o *options) apply(opts []Option) {
	for _, opt := range opts {
		if opt != nil {
			opt(o)
		}
	}
}

func (o *options) validate() error {
	switch {
	case len(o.policies) == 0 && o.fallback == nil:
		return errors.New("no policy: nothing would be protected")
	case o.unknown > RefuseUnknown:
		return errors.New("unknown value for WithUnknownMethods")
	}
	return o.validateMetadataKey()
}

func (o *options) validateMetadataKey() error {
	if !isMetadataName(o.metadataKey) {
		return errors.New("the name of the key's metadata is not one that can hold text")
	}
	return nil
}
