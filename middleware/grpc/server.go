package idemgrpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/middleware/internal/adapter"
)

var (
	errNoPolicy = errors.New("the method has no policy, and one is required")
	errTwoKeys  = errors.New("metadata and request carry different keys")
)

// engine is the part of [idem.Engine] for interceptors.
type engine interface {
	Do(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	DoWithoutKey(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error)
	Nested(ctx context.Context, op *idem.Operation) (bool, error)
	MayRunAgain(op *idem.Operation) bool
	Joined() bool
	ReportRefused(ctx context.Context, route string, r *idem.Refusal)
	ReportUnprotected(ctx context.Context, route string)
}

// Interceptors protect the methods of a server. They are safe for concurrent use, by
// several servers as well.
type Interceptors struct {
	engine  engine
	options options
	replay  adapter.Names
}

// New makes the interceptors of a server. They protect the methods that have a policy. The Name of a
// policy is the method, as "/package.Service/Method". A policy without a Name protects all other
// methods, described by generated code or not. It leaves out methods that stream requests, methods
// whose descriptor says idempotency_level = NO_SIDE_EFFECTS, and gRPC's own services, such as
// grpc.health.v1.Health. A package of your own called grpc is protected. cfg may be left out, and
// there is at most one.
//
// New returns an error for wrong wiring, such as no engine, no scope, two policies for a method, or
// forbidden metadata. A policy by name is wrong for a method that streams requests. So is one for a
// method without generated code in this binary, because a typing error would leave a method without
// protection.
func New(e *idem.Engine, policies []idem.Policy, cfg ...Config) (*Interceptors, error) {
	x := &Interceptors{engine: e}
	var err error
	if x.options, err = newOptions(policies, cfg); err == nil && e == nil {
		err = errors.New("no engine")
	}
	if err == nil {
		err = x.options.fit(e)
	}
	if err == nil {
		x.replay, err = adapter.NewNames(replayed, x.options.Replay, isReplayable)
	}
	if err != nil {
		return nil, fmt.Errorf("idemgrpc: %w", err)
	}
	return x, nil
}

// MustNew is [New] for known-good wiring. Like [regexp.MustCompile] it panics where New returns an
// error.
func MustNew(e *idem.Engine, policies []idem.Policy, cfg ...Config) *Interceptors {
	return adapter.Must(New(e, policies, cfg...))
}

// Unary returns the interceptor of unary methods.
func (x *Interceptors) Unary() grpc.UnaryServerInterceptor { return x.unary }

// Stream returns the interceptor of streaming methods.
func (x *Interceptors) Stream() grpc.StreamServerInterceptor { return x.stream }

// admit makes an operation of a request with its key, scope and message. pass is true if
// the handler runs as without the interceptor, because the method is not protected or the
// call is a part of the running execution of its key. After an error nothing has been touched.
func (x *Interceptors) admit(ctx context.Context, m *method, req any) (op idem.Operation, pass bool, err error) {
	switch {
	case m.refuse:
		return op, false, errNoPolicy
	case m.policy == nil:
		return op, true, nil
	}
	msg, err := readable(req)
	if err != nil {
		return op, false, idem.NewRefusal(idem.CodeInternal, err)
	}
	field, set := keyIn(msg, m.keyField)
	values := metadata.ValueFromIncomingContext(ctx, x.options.MetadataKey)
	if m.optional && len(values) == 0 && !set {
		return x.admitWithoutKey(ctx, m, msg)
	}
	key, err := parseKey(values, field, set)
	if err != nil {
		return op, false, err
	}
	scope, err := m.policy.ScopeOf(ctx)
	if err != nil {
		return op, false, err
	}
	if err := m.takes(msg); err != nil {
		return op, false, err
	}
	op = idem.Operation{
		Transport: idem.TransportGRPC,
		Scope:     scope,
		Key:       key,
		Policy:    m.policy,
		Fingerprint: func(version uint8) (driver.Fingerprint, error) {
			body, err := appendCanonical(nil, msg, m.keyField)
			if err != nil {
				return driver.Fingerprint{}, idem.NewRefusal(idem.CodeBodyInvalid, err)
			}
			return idem.NewFingerprint(version, "grpc "+m.name, string(body))
		},
	}
	pass, err = x.engine.Nested(ctx, &op)
	return op, pass, err
}

// admitWithoutKey is admit for a call without a key, on a method that allows it.
func (x *Interceptors) admitWithoutKey(ctx context.Context, m *method, msg proto.Message) (op idem.Operation, pass bool, err error) {
	if !x.engine.Joined() {
		x.engine.ReportUnprotected(ctx, m.route())
		return op, true, nil
	}
	if err := m.takes(msg); err != nil {
		return op, false, err
	}
	op = idem.Operation{Transport: idem.TransportGRPC, Policy: m.policy}
	op.Scope, _ = m.policy.ScopeOf(ctx) // for limits alone, so it may be unknown
	pass, err = x.engine.Nested(ctx, &op)
	return op, pass, err
}

// takes refuses a request message over the limit.
func (m *method) takes(msg proto.Message) error {
	if n := int64(proto.Size(msg)); n > m.policy.MaxRequestBody {
		return idem.NewRefusal(idem.CodeBodyTooLarge, fmt.Errorf("request message of %d bytes, at most %d", n, m.policy.MaxRequestBody))
	}
	return nil
}

// parseKey takes the key from the metadata's values, or from a field.
func parseKey(values []string, field string, set bool) (idem.Key, error) {
	if !set {
		return idem.ParseKey(values)
	}
	key, err := idem.ParseKey([]string{field})
	if err != nil || len(values) == 0 {
		return key, err
	}
	if other, err := idem.ParseKey(values); err != nil {
		return "", err
	} else if other != key {
		return "", idem.NewRefusal(idem.CodeKeyInvalid, errTwoKeys)
	}
	return key, nil
}

// keyIn returns the key in a field. An empty field counts as set only if it is declared
// "optional".
func keyIn(msg proto.Message, field protoreflect.Name) (string, bool) {
	r := msg.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(field)
	if !isKeyField(fd) || !r.Has(fd) {
		return "", false
	}
	return r.Get(fd).String(), true
}

// report returns the error of a refusal by the interceptors themselves.
func (x *Interceptors) report(ctx context.Context, m *method, err error) error {
	r := adapter.RefusalOf(err)
	x.engine.ReportRefused(ctx, m.route(), r)
	return refuse(ctx, r)
}

// refuse returns the error of a refusal and sets its trailer.
func refuse(ctx context.Context, r *idem.Refusal) error {
	put(ctx, nil, pushback(r.RetryAfter))
	return RefusalStatus(r).Err()
}

// put sets the metadata of an answer. An error is ignored, because the outcome is stored. The
// header of a stream may have been sent.
func put(ctx context.Context, header, trailer metadata.MD) {
	_ = grpc.SetHeader(ctx, header)
	_ = grpc.SetTrailer(ctx, trailer)
}
