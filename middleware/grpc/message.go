package idemgrpc

import (
	"errors"
	"fmt"
	"reflect"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/dynamicpb"
)

// This file is about the types of messages. gRPC takes messages of Google's protobuf, and those of
// older generators (protoadapt.MessageV1), such as gogo/protobuf. Of the latter only Marshal and
// Unmarshal can be relied on, because their fields may have types that no reflection knows.

var (
	errNotProtobuf = errors.New("the request is not a protobuf message")
	errIncomplete  = errors.New("the request cannot be compared, because Google's protobuf does not know the type of a message in it")
)

// messageOf returns v as the codec of gRPC sees it, nil if v is no protobuf message.
func messageOf(v any) proto.Message {
	switch v := v.(type) {
	case proto.Message:
		return v
	case protoadapt.MessageV1:
		return protoadapt.MessageV2Of(v)
	}
	return nil
}

// readable returns a request in a form whose fields can be read. A message of an older generator
// is decoded by its descriptor. Without its complete descriptor, two sendings of one request could
// look different, because gogo/protobuf writes maps in any order. Such a request is an error.
func readable(req any) (msg proto.Message, err error) {
	if msg, ok := req.(proto.Message); ok {
		return msg, nil
	}
	defer func() {
		if p := recover(); p != nil { // a type of which no descriptor can be made
			msg, err = nil, fmt.Errorf("%w: %T: %v", errNotProtobuf, req, p)
		}
	}()
	old, ok := req.(protoadapt.MessageV1)
	if !ok {
		return nil, fmt.Errorf("%w: %T", errNotProtobuf, req)
	}
	md := descriptorOf(old)
	if missing := incomplete(md, map[protoreflect.FullName]bool{}); missing != "" {
		return nil, fmt.Errorf("%w: %s in %T", errIncomplete, missing, req)
	}
	wire, err := serialise(old)
	if err != nil {
		return nil, err
	}
	read := dynamicpb.NewMessage(md)
	return read, proto.UnmarshalOptions{AllowPartial: true}.Unmarshal(wire, read)
}

// incomplete returns the name of a message within md that has no descriptor, or "".
func incomplete(md protoreflect.MessageDescriptor, seen map[protoreflect.FullName]bool) protoreflect.FullName {
	if md.IsPlaceholder() {
		return md.FullName()
	}
	seen[md.FullName()] = true
	for i := range md.Fields().Len() {
		inner := md.Fields().Get(i).Message()
		if inner == nil || seen[inner.FullName()] {
			continue
		}
		if missing := incomplete(inner, seen); missing != "" {
			return missing
		}
	}
	return ""
}

// descriptorOf returns the descriptor of a message of an older generator. It does not look at the
// types of the fields. It panics if the message has a descriptor that cannot be read.
func descriptorOf(old protoadapt.MessageV1) protoreflect.MessageDescriptor {
	return protoadapt.MessageV2Of(old).ProtoReflect().Descriptor()
}

// serialise writes a message that [messageOf] accepts, by the code that its generator has made.
func serialise(v any) ([]byte, error) {
	if _, ok := v.(proto.Message); !ok {
		if m, ok := v.(interface{ Marshal() ([]byte, error) }); ok {
			return m.Marshal()
		}
	}
	return proto.Marshal(messageOf(v))
}

// parse reads into a message what serialise has written.
func parse(wire []byte, v any) error {
	if _, ok := v.(proto.Message); !ok {
		if m, ok := v.(interface{ Unmarshal([]byte) error }); ok {
			return m.Unmarshal(wire)
		}
	}
	return proto.Unmarshal(wire, messageOf(v))
}

// cloneOf copies a message that [messageOf] accepts, in the type that handler and codec know.
func cloneOf(v any) (any, error) {
	if msg, ok := v.(proto.Message); ok {
		return proto.Clone(msg), nil
	}
	wire, err := serialise(v)
	if err != nil {
		return nil, err
	}
	clone := reflect.New(reflect.TypeOf(v).Elem()).Interface()
	return clone, parse(wire, clone)
}

// newMessage makes an empty message of a type, nil if this binary does not know it.
func newMessage(name protoreflect.FullName) proto.Message {
	t, err := protoregistry.GlobalTypes.FindMessageByName(name)
	if err != nil {
		return nil
	}
	return t.New().Interface()
}

// rawMessage is a stored message of a type that is in no registry, such as one of gogo/protobuf or
// of a descriptor that was loaded at run time. Codecs of protobuf send its bytes. Codecs of other
// formats fail, because they cannot know its fields.
type rawMessage struct{ wire []byte }

var _ protoadapt.MessageV1 = (*rawMessage)(nil)

var errRaw = errors.New("idemgrpc: the type of the stored message is not registered, so only its protobuf form is known")

func (m *rawMessage) Reset()                     { m.wire = nil }
func (m *rawMessage) String() string             { return fmt.Sprintf("message of %d bytes", len(m.wire)) }
func (*rawMessage) ProtoMessage()                {}
func (m *rawMessage) Marshal() ([]byte, error)   { return m.wire, nil }
func (*rawMessage) Unmarshal([]byte) error       { return errRaw }
func (*rawMessage) MarshalJSON() ([]byte, error) { return nil, errRaw }
