package idemgrpc

import (
	"bytes"
	"compress/gzip"
	"errors"
	"math/big"

	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/types/descriptorpb"
)

// This file has messages as protoc-gen-gogofaster makes them. They have a descriptor, Marshal and
// Unmarshal, and are registered with gogo/protobuf only. Their fields have types that the runtime of
// Google's protobuf does not know (gogoproto.customtype), so its reflection panics on them.

// gogoRequest is acme.PayRequest. Its notes are sent in the order of Go's maps, which differs each
// time.
type gogoRequest struct {
	To     string            `json:"to,omitempty"     protobuf:"bytes,1,opt,name=to,proto3"`
	Amount int64             `json:"amount,omitempty" protobuf:"varint,2,opt,name=amount,proto3"`
	Fee    gogoAmount        `json:"fee"              protobuf:"bytes,3,opt,name=fee,proto3,customtype=Amount"`
	Notes  map[string]string `json:"notes,omitempty"  protobuf:"bytes,4,rep,name=notes,proto3"                 protobuf_key:"bytes,1,opt,name=key,proto3" protobuf_val:"bytes,2,opt,name=value,proto3"`
}

// gogoResponse is acme.PayResponse.
type gogoResponse struct {
	ID  string     `json:"id,omitempty" protobuf:"bytes,1,opt,name=id,proto3"`
	Fee gogoAmount `json:"fee"          protobuf:"bytes,3,opt,name=fee,proto3,customtype=Amount"`
}

// gogoAmount is a custom type. It is sent as its decimal text.
type gogoAmount struct{ big.Int }

var (
	_ protoadapt.MessageV1 = (*gogoRequest)(nil)
	_ protoadapt.MessageV1 = (*gogoResponse)(nil)
)

func (m *gogoRequest) Reset()                     { *m = gogoRequest{} }
func (*gogoRequest) String() string               { return "PayRequest" }
func (*gogoRequest) ProtoMessage()                {}
func (*gogoRequest) Descriptor() ([]byte, []int)  { return gogoFile, []int{0} }
func (*gogoRequest) XXX_MessageName() string      { return "acme.PayRequest" } //nolint:staticcheck // as generated
func (m *gogoResponse) Reset()                    { *m = gogoResponse{} }
func (*gogoResponse) String() string              { return "PayResponse" }
func (*gogoResponse) ProtoMessage()               {}
func (*gogoResponse) Descriptor() ([]byte, []int) { return gogoFile, []int{1} }
func (*gogoResponse) XXX_MessageName() string     { return "acme.PayResponse" } //nolint:staticcheck // as generated

func (m *gogoRequest) Marshal() ([]byte, error) {
	var b []byte
	b = appendText(b, 1, m.To)
	if m.Amount != 0 {
		b = protowire.AppendVarint(protowire.AppendTag(b, 2, protowire.VarintType), uint64(m.Amount))
	}
	b = protowire.AppendString(protowire.AppendTag(b, 3, protowire.BytesType), m.Fee.String())
	for k, v := range m.Notes {
		b = protowire.AppendBytes(protowire.AppendTag(b, 4, protowire.BytesType), appendText(appendText(nil, 1, k), 2, v))
	}
	return b, nil
}

func (m *gogoResponse) Marshal() ([]byte, error) {
	return protowire.AppendString(protowire.AppendTag(appendText(nil, 1, m.ID), 3, protowire.BytesType), m.Fee.String()), nil
}

// appendText leaves an empty text out, in map entries as well.
func appendText(b []byte, number protowire.Number, text string) []byte {
	if text == "" {
		return b
	}
	return protowire.AppendString(protowire.AppendTag(b, number, protowire.BytesType), text)
}

func (m *gogoRequest) Unmarshal(b []byte) error {
	return eachField(b, func(number protowire.Number, n uint64, text []byte) error {
		switch number {
		case 1:
			m.To = string(text)
		case 2:
			m.Amount = int64(n)
		case 3:
			return m.Fee.UnmarshalText(text)
		case 4:
			var k, v string
			err := eachField(text, func(number protowire.Number, _ uint64, text []byte) error {
				if number == 1 {
					k = string(text)
				} else {
					v = string(text)
				}
				return nil
			})
			if m.Notes == nil {
				m.Notes = map[string]string{}
			}
			m.Notes[k] = v
			return err
		}
		return nil
	})
}

func (m *gogoResponse) Unmarshal(b []byte) error {
	return eachField(b, func(number protowire.Number, _ uint64, text []byte) error {
		if number == 1 {
			m.ID = string(text)
			return nil
		}
		return m.Fee.UnmarshalText(text)
	})
}

func eachField(b []byte, fn func(protowire.Number, uint64, []byte) error) error {
	for len(b) > 0 {
		number, kind, n := protowire.ConsumeTag(b)
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		var varint uint64
		var text []byte
		switch kind {
		case protowire.VarintType:
			varint, n = protowire.ConsumeVarint(b)
		case protowire.BytesType:
			text, n = protowire.ConsumeBytes(b)
		default:
			return errors.New("another wire type")
		}
		if n < 0 {
			return protowire.ParseError(n)
		}
		b = b[n:]
		if err := fn(number, varint, text); err != nil {
			return err
		}
	}
	return nil
}

// gogoFile is the compressed descriptor of both messages.
var gogoFile = func() []byte {
	field := func(name string, number int32, kind descriptorpb.FieldDescriptorProto_Type) *descriptorpb.FieldDescriptorProto {
		return &descriptorpb.FieldDescriptorProto{Name: &name, Number: &number, Type: &kind,
			Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum(), JsonName: &name}
	}
	text, number := descriptorpb.FieldDescriptorProto_TYPE_STRING, descriptorpb.FieldDescriptorProto_TYPE_INT64
	notes := field("notes", 4, descriptorpb.FieldDescriptorProto_TYPE_MESSAGE)
	notes.TypeName, notes.Label = new(".acme.PayRequest.NotesEntry"), descriptorpb.FieldDescriptorProto_LABEL_REPEATED.Enum()
	file := &descriptorpb.FileDescriptorProto{
		Name: new("acme/pay.proto"), Package: new("acme"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{
			{Name: new("PayRequest"), Field: []*descriptorpb.FieldDescriptorProto{field("to", 1, text), field("amount", 2, number), field("fee", 3, text), notes},
				NestedType: []*descriptorpb.DescriptorProto{{Name: new("NotesEntry"), Field: []*descriptorpb.FieldDescriptorProto{field("key", 1, text), field("value", 2, text)},
					Options: &descriptorpb.MessageOptions{MapEntry: new(true)}}}},
			{Name: new("PayResponse"), Field: []*descriptorpb.FieldDescriptorProto{field("id", 1, text), field("fee", 3, text)}},
			{Name: new("Plain"), Field: []*descriptorpb.FieldDescriptorProto{field("id", 1, text)}},
		},
	}
	if _, err := protodesc.NewFile(file, nil); err != nil {
		panic(err)
	}
	return compressed(file)
}()

// compressed is a descriptor as generated code holds it.
func compressed(file *descriptorpb.FileDescriptorProto) []byte {
	b, err := proto.Marshal(file)
	if err != nil {
		panic(err)
	}
	var z bytes.Buffer
	w := gzip.NewWriter(&z)
	if _, err := w.Write(b); err != nil {
		panic(err)
	}
	if err := w.Close(); err != nil {
		panic(err)
	}
	return z.Bytes()
}
