package idemgrpc

import (
	"context"
	"errors"
	"fmt"

	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"

	"github.com/idemkeeper/idemkeeper/idem"
)

var (
	errNotProtobuf = errors.New("the request is not a protobuf message")
	errTwoKeys     = errors.New("metadata and request carry different keys")
)

// operation reads a request: key, scope, message. The error is a
// [*idem.Refusal], and nothing has been touched then.
func (x *Interceptors) operation(ctx context.Context, m *method, req any) (idem.Operation, error) {
	msg := messageOf(req)
	if msg == nil {
		return idem.Operation{}, idem.NewRefusal(idem.CodeInternal, fmt.Errorf("%w: %T", errNotProtobuf, req))
	}
	key, err := x.key(ctx, m, msg)
	if err != nil {
		return idem.Operation{}, err
	}
	scope, err := m.policy.ScopeOf(ctx)
	if err != nil {
		return idem.Operation{}, err
	}
	if n := int64(proto.Size(msg)); n > m.policy.MaxRequestBody {
		return idem.Operation{}, idem.NewRefusal(idem.CodeBodyTooLarge, fmt.Errorf("request message of %d bytes, at most %d", n, m.policy.MaxRequestBody))
	}
	return idem.Operation{
		Transport: idem.TransportGRPC,
		Scope:     scope,
		Key:       key,
		Policy:    m.policy,
		Fingerprint: func(version uint8) (idem.Fingerprint, error) {
			return fingerprint(version, m.operation, msg, m.keyField)
		},
	}, nil
}

// key reads the key from the metadata, or from the request's field.
func (x *Interceptors) key(ctx context.Context, m *method, msg proto.Message) (idem.Key, error) {
	field, set := keyIn(msg, m.keyField)
	return parseKey(metadata.ValueFromIncomingContext(ctx, x.options.metadataKey), field, set)
}

// parseKey takes the key from the metadata's values or from a field that is set.
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

// keyIn returns the key that is in a field. One that is empty counts as set
// only where the field says so ("optional").
func keyIn(msg proto.Message, field protoreflect.Name) (string, bool) {
	if field == "" {
		return "", false
	}
	r := msg.ProtoReflect()
	fd := r.Descriptor().Fields().ByName(field)
	if !isKeyField(fd) || !r.Has(fd) {
		return "", false
	}
	return r.Get(fd).String(), true
}

// hasKey says whether a call of any method carries a key in its metadata.
func (x *Interceptors) hasKey(ctx context.Context) bool {
	return len(metadata.ValueFromIncomingContext(ctx, x.options.metadataKey)) > 0
}

// messageOf is what gRPC's own codec makes of a value; nil for what is no
// protobuf message.
func messageOf(v any) proto.Message {
	switch v := v.(type) {
	case proto.Message:
		return v
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	}
	return nil
}

// refusalOf holds every other error back from the client.
func refusalOf(err error) *idem.Refusal {
	if r, ok := errors.AsType[*idem.Refusal](err); ok {
		return r
	}
	return idem.NewRefusal(idem.CodeInternal, err)
}
