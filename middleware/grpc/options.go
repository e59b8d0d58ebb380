package idemgrpc

import (
	"context"
	"errors"
	"fmt"
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

// Config holds the settings of a server. The zero value is safe, and is the default. Constructors
// take it as their last argument, and it may be left out.
type Config struct {
	// MetadataKey names the metadata with the key. "" stands for [DefaultMetadataKey].
	MetadataKey string
	// KeyField names a string field of requests with the key, such as "request_id" of AIP-155. It
	// applies to every protected method whose request has such a field. If the field is not set, the
	// key is that of the metadata. If both are set, they have to be equal. The field is no part of the
	// fingerprint. "" stands for no field.
	KeyField string
	// RefuseUnknown refuses a call of a method without a policy as internal, with nothing executed,
	// unless its descriptor says that it has no side effects. A new method then fails instead of
	// running without protection. By default it runs as without the interceptor.
	RefuseUnknown bool
	// OptionalKey names methods whose calls need no key, while clients learn to send keys. A name is
	// "/package.Service/Method", or "/package.Service/*" for all of a service. What happens to a call without a
	// key is the same as with OptionalKey of [github.com/idemkeeper/idemkeeper/middleware/exchange.Config].
	OptionalKey []string
	// Exempt names methods that run as without the interceptor and ignore keys. A name is
	// "/package.Service/Method", or "/package.Service/*" for all of a service. The services of
	// gRPC itself (health, reflection, channelz, load balancing, profiling) are exempt already,
	// and the method of [RegisterStatusServer] always is.
	Exempt []string
	// Replay lists header and trailer metadata to store and replay in addition to content-language,
	// etag and location. Cookies, credentials and metadata of one exchange ("grpc-…", "date") are an
	// error.
	Replay []string
	// StatusPolicies tell [RegisterStatusServer] which routes resolve their doubts, as in
	// [github.com/idemkeeper/idemkeeper/middleware/exchange.Config]. The interceptors ignore them.
	StatusPolicies []idem.Policy
}

// options are what a server protects, and how.
type options struct {
	Config
	policies map[string]idem.Policy // by method
	fallback *idem.Policy           // of all other methods, nil for none
}

func newOptions(policies []idem.Policy, cfg []Config) (o options, err error) {
	if o.Config, err = completed(cfg); err != nil {
		return o, err
	}
	o.policies = make(map[string]idem.Policy)
	for _, p := range policies {
		method := p.Name
		p.Name = "" // the method names it, as it names a policy for all methods
		_, twice := o.policies[method]
		switch {
		case method == "" && o.fallback != nil:
			return o, errors.New("two policies for all other methods")
		case method == "":
			o.fallback = &p
		case twice:
			return o, fmt.Errorf("method %q: has two policies", method)
		default:
			o.policies[method] = p
		}
	}
	if len(policies) == 0 {
		return o, errors.New("no policy: nothing would be protected")
	}
	err = o.validateMethods()
	return o, err
}

// completed returns the config of a server with its defaults.
func completed(cfg []Config) (Config, error) {
	c, err := adapter.One(cfg)
	if c.MetadataKey == "" {
		c.MetadataKey = DefaultMetadataKey
	}
	if err == nil {
		err = checkMetadataKey(c.MetadataKey)
	}
	return c, err
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
	retry       resend.Policy
	honoured    bool // the server honours keys
	metadataKey string
	keyed       func(method string) bool
	callName    func(ctx context.Context, method string) string
}

// WithKeysHonoured states that the server honours keys: a call that comes a second time with the
// key of the first one has no second effect. Then the interceptors send calls again.
func WithKeysHonoured() ClientOption {
	return func(o *clientOptions) { o.honoured = true }
}

// WithRetryBackoff sets the longest pause before the second attempt, and the longest
// pause to which it doubles. The defaults are 100 ms and 5 s. The pause is a random part
// of it, in addition to the pause from the server.
func WithRetryBackoff(first, most time.Duration) ClientOption {
	return func(o *clientOptions) { o.retry.First, o.retry.Most = first, most }
}

// WithRetryElapsed bounds the time in which attempts start, counted from the first one.
// The default is 1 minute, and with 0 each call is sent once. The call's context bounds it as well.
func WithRetryElapsed(d time.Duration) ClientOption {
	return func(o *clientOptions) { o.retry.Elapsed = d }
}

// WithKeyedMethods says which methods get a key, by their full names. By default all
// methods do, except those whose descriptor says idempotency_level = NO_SIDE_EFFECTS, and
// those of gRPC's own services.
func WithKeyedMethods(fn func(method string) bool) ClientOption {
	return func(o *clientOptions) { o.keyed = fn }
}

// WithMetadataKey names the metadata with the key. The default is [DefaultMetadataKey].
func WithMetadataKey(name string) ClientOption {
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
	if o.keyed == nil {
		return errors.New("no function says which methods get a key")
	}
	if err := checkMetadataKey(o.metadataKey); err != nil {
		return err
	}
	return o.retry.Validate()
}
