package main

import (
	"errors"
	"fmt"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/reflect/protoregistry"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// unnamed is the type of a message that FILE does not name: package idemgrpc
// takes a type that it does not know for the one that the method returns.
const unnamed = "idemctl.Unnamed"

func (ans *answer) overGRPC(allow []string) (idem.Response, error) {
	header, err := ans.fields(&fieldsOfGRPC, allow)
	if err != nil {
		return idem.Response{}, err
	}
	var r idem.Response
	switch {
	case ans.status == 0 && ans.text != nil:
		err = errors.New("status 0 is gRPC's OK: want body_base64, the protobuf message, in place of body")
	case ans.status == 0:
		r, err = storedMessage(ans.messageType, ans.bytes)
	case ans.binary || ans.messageType != "":
		err = fmt.Errorf("gRPC code %d comes without a message: want body, the status's text", ans.status)
	default:
		text := ""
		if ans.text != nil {
			text = *ans.text
		}
		r, err = storedStatus(ans.status, text)
	}
	r.Header = header
	return r, err
}

// storedMessage is the stored form of a message that a method returned.
func storedMessage(name string, message []byte) (idem.Response, error) {
	if name == "" {
		name = unnamed
	}
	desc, err := emptyType(protoreflect.FullName(name))
	if err != nil {
		return idem.Response{}, err
	}
	m := dynamicpb.NewMessage(desc)
	if err := proto.Unmarshal(message, m); err != nil { // keeps all fields, as unknown ones
		return idem.Response{}, errors.New("body_base64 is not a protobuf message")
	}
	return idemgrpc.Outcome(nil, m)
}

// emptyType is a message type of a name, of which nothing else is known.
func emptyType(name protoreflect.FullName) (protoreflect.MessageDescriptor, error) {
	if !name.IsValid() {
		return nil, fmt.Errorf("message_type %q is not the full name of a message", string(name))
	}
	file, err := protodesc.NewFile(&descriptorpb.FileDescriptorProto{
		Name: new("idemctl.proto"), Package: new(string(name.Parent())), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new(string(name.Name()))}},
	}, new(protoregistry.Files))
	if err != nil {
		return nil, fmt.Errorf("message_type %q: %w", string(name), err)
	}
	return file.Messages().Get(0), nil
}

// storedStatus is the stored form of an error that a method returned: behind
// what holds no message comes its google.rpc.Status.
func storedStatus(code int, text string) (idem.Response, error) {
	r, err := idemgrpc.Outcome(nil)
	if err != nil {
		return r, err
	}
	r.Status = code
	r.Body, err = proto.MarshalOptions{}.MarshalAppend(r.Body, &spb.Status{Code: int32(code), Message: text})
	return r, err
}
