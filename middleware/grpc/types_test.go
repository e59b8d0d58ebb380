package idemgrpc

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/protoadapt"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

const typedMethod = "/acme.Payments/Pay"

// typedService is a server with one method, whose messages have types of the test's own.
type typedService struct {
	conn  *grpc.ClientConn
	store *memorystore.Store
	runs  int
}

func startTyped(t testing.TB, newRequest func() any, handle func(req any) (any, error), opts ...grpc.ServerOption) *typedService {
	t.Helper()
	s := &typedService{store: memorystore.New()}
	engine, err := idem.New(memorylock.New(), s.store)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	x, err := New(engine, []idem.Policy{{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}}, Config{KeyField: "to"})
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(append(opts, grpc.UnaryInterceptor(x.Unary()))...)
	server.RegisterService(&grpc.ServiceDesc{ServiceName: "acme.Payments", HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Pay",
		Handler: func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := newRequest()
			if err := dec(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: typedMethod}, func(_ context.Context, req any) (any, error) {
				s.runs++
				return handle(req)
			})
		}}}}, struct{}{})
	listener := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	s.conn, err = grpc.NewClient("passthrough:///acme", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = s.conn.Close()
		server.Stop()
		<-done
	})
	return s
}

// call sends a request with a key in its metadata, unless key is "".
func (s *typedService) call(key string, req, reply any, opts ...grpc.CallOption) (replayed bool, err error) {
	ctx := context.Background()
	if key != "" {
		ctx = metadata.AppendToOutgoingContext(ctx, DefaultMetadataKey, key)
	}
	var header metadata.MD
	if _, gogo := req.(*gogoRequest); gogo && len(opts) == 0 {
		opts = []grpc.CallOption{grpc.ForceCodec(gogoCodec{})}
	}
	err = s.conn.Invoke(ctx, typedMethod, req, reply, append(opts, grpc.Header(&header))...)
	return len(header.Get(ReplayedMetadataKey)) > 0, err
}

func gogoPay(fee int64) *gogoRequest {
	m := &gogoRequest{Amount: 1000, Fee: gogoAmount{*big.NewInt(fee)}, Notes: map[string]string{"": "", "empty": ""}}
	for i := range 20 {
		m.Notes[fmt.Sprint("note ", i)] = "text"
	}
	return m
}

// A message of gogo/protobuf is in no registry of Google's, has fields that reflection panics on, and
// writes its maps in another order each time.
func TestMessagesOfGogo(t *testing.T) {
	t.Parallel()
	s := startTyped(t, func() any { return new(gogoRequest) }, func(req any) (any, error) {
		return &gogoResponse{ID: "p1", Fee: req.(*gogoRequest).Fee}, nil
	}, grpc.ForceServerCodec(gogoCodec{}))
	for i := range 10 {
		got := new(gogoResponse)
		if replayed, err := s.call("k1", gogoPay(1<<40), got); err != nil || replayed != (i > 0) || got.ID != "p1" || got.Fee.Int64() != 1<<40 {
			t.Fatalf("call %d = %+v, %v (replayed %v), want p1", i, got, err, replayed)
		}
	}
	if _, err := s.call("k1", gogoPay(1), new(gogoResponse)); status.Code(err) != codes.Code(idem.CodeKeyReused.GRPCCode()) {
		t.Errorf("another fee under the key = %v, want key-reused", err)
	}
	if s.runs != 1 {
		t.Errorf("handler ran %d times, want 1", s.runs)
	}
	// The key in a field.
	req := gogoPay(2)
	req.To = "key-in-field"
	for i := range 2 {
		if replayed, err := s.call("", req, new(gogoResponse)); err != nil || replayed != (i > 0) {
			t.Errorf("call %d with the key in a field = %v (replayed %v)", i, err, replayed)
		}
	}
}

// gogoCodec is what services with such messages use, because gRPC's own codec looks at the types of
// the fields.
type gogoCodec struct{}

func (gogoCodec) Name() string { return "proto" }

func (gogoCodec) Marshal(v any) ([]byte, error) {
	return v.(interface{ Marshal() ([]byte, error) }).Marshal()
}

func (gogoCodec) Unmarshal(b []byte, v any) error {
	return v.(interface{ Unmarshal([]byte) error }).Unmarshal(b)
}

// plainGogo has no field of a custom type, so gRPC's own codec takes it.
type plainGogo struct {
	ID string `protobuf:"bytes,1,opt,name=id,proto3"`
}

func (m *plainGogo) Reset()                    { *m = plainGogo{} }
func (m *plainGogo) String() string            { return m.ID }
func (*plainGogo) ProtoMessage()               {}
func (*plainGogo) Descriptor() ([]byte, []int) { return gogoFile, []int{2} }

// The codec of gRPC takes messages of older generators without code of their own, too.
func TestMessagesOfOlderGenerators(t *testing.T) {
	t.Parallel()
	s := startTyped(t, func() any { return new(plainGogo) }, func(req any) (any, error) { return req, nil })
	for i := range 2 {
		got := new(plainGogo)
		if replayed, err := s.call("k1", &plainGogo{ID: "x"}, got); err != nil || replayed != (i > 0) || got.ID != "x" {
			t.Errorf("call %d = %v, %v (replayed %v), want x", i, got, err, replayed)
		}
	}
	if s.runs != 1 {
		t.Errorf("handler ran %d times, want 1", s.runs)
	}
}

// odd is a message of which no descriptor can be made.
type odd struct {
	Field string `protobuf:"bytes,1,opt,name=field"`
}

func (*odd) Descriptor() ([]byte, []int) { return []byte("damaged"), []int{0} }

func (*odd) Reset()                   {}
func (*odd) String() string           { return "" }
func (*odd) ProtoMessage()            {}
func (*odd) Marshal() ([]byte, error) { return nil, nil }
func (*odd) Unmarshal([]byte) error   { return nil }

// apart is a message with a part of a type from a file that Google's protobuf does not know.
type apart struct {
	odd

	Field string `protobuf:"bytes,1,opt,name=field"`
}

func (*apart) Descriptor() ([]byte, []int) { return apartFile, []int{0} }

var apartFile = func() []byte {
	f := &descriptorpb.FileDescriptorProto{Name: new("acme/apart.proto"), Package: new("acme"), Syntax: new("proto3"),
		Dependency: []string{"acme/elsewhere.proto"}, MessageType: []*descriptorpb.DescriptorProto{{Name: new("Apart"),
			Field: []*descriptorpb.FieldDescriptorProto{{Name: new("part"), Number: proto.Int32(1), JsonName: new("part"), TypeName: new(".acme.Elsewhere"),
				Type: descriptorpb.FieldDescriptorProto_TYPE_MESSAGE.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}}}}}
	return compressed(f)
}()

// failing is a message whose Marshal fails.
type failing struct{ gogoRequest }

func (*failing) Marshal() ([]byte, error) { return nil, errors.New("secret") }

// What cannot be compared or replayed is refused before anything runs.
func TestMessagesThatCannotBeComparedDoNotRun(t *testing.T) {
	t.Parallel()
	for name, newRequest := range map[string]func() any{
		"no descriptor":                   func() any { return new(odd) },
		"a part without a descriptor":     func() any { return new(apart) },
		"a message that fails to marshal": func() any { return new(failing) },
		"no protobuf at all":              func() any { return new(struct{ A int }) },
	} {
		t.Run(name, func(t *testing.T) {
			s := startTyped(t, newRequest, func(any) (any, error) { return new(gogoResponse), nil }, grpc.ForceServerCodec(anyCodec{}))
			_, err := s.call("k1", &gogoRequest{}, new(gogoResponse))
			if got, _ := CodeOf(err); got != idem.CodeInternal || s.runs != 0 || s.store.Len() != 0 || strings.Contains(fmt.Sprint(err), "secret") {
				t.Errorf("call = %v after %d runs with %d records, want internal and nothing", err, s.runs, s.store.Len())
			}
		})
	}
}

// anyCodec decodes into nothing and sends nothing.
type anyCodec struct{}

func (anyCodec) Name() string                { return "proto" }
func (anyCodec) Marshal(any) ([]byte, error) { return nil, nil }
func (anyCodec) Unmarshal([]byte, any) error { return nil }

// Messages of a descriptor that was loaded at run time are in no registry.
func TestUnregisteredDynamicMessages(t *testing.T) {
	t.Parallel()
	f := &descriptorpb.FileDescriptorProto{Name: new("acme/dynamic.proto"), Package: new("acme.dynamic"), Syntax: new("proto3"),
		MessageType: []*descriptorpb.DescriptorProto{{Name: new("Pay"), Field: []*descriptorpb.FieldDescriptorProto{{Name: new("amount"), Number: proto.Int32(1),
			JsonName: new("amount"), Type: descriptorpb.FieldDescriptorProto_TYPE_INT64.Enum(), Label: descriptorpb.FieldDescriptorProto_LABEL_OPTIONAL.Enum()}}}}}
	file, err := protodesc.NewFile(f, nil)
	if err != nil {
		t.Fatal(err)
	}
	md := file.Messages().Get(0)
	pay := func(amount int64) *dynamicpb.Message {
		m := dynamicpb.NewMessage(md)
		m.Set(md.Fields().Get(0), protoreflect.ValueOfInt64(amount))
		return m
	}
	s := startTyped(t, func() any { return dynamicpb.NewMessage(md) }, func(req any) (any, error) { return req, nil })
	for i := range 3 {
		got := dynamicpb.NewMessage(md)
		if replayed, err := s.call("k1", pay(7), got); err != nil || replayed != (i > 0) || !proto.Equal(got, pay(7)) {
			t.Fatalf("call %d = %v, %v (replayed %v), want amount 7", i, got, err, replayed)
		}
	}
	if s.runs != 1 {
		t.Errorf("handler ran %d times, want 1", s.runs)
	}
}

// jsonCodec sends messages as JSON.
type jsonCodec struct{}

func init() { encoding.RegisterCodec(jsonCodec{}) } //nolint:gochecknoinits // gRPC asks for that

func (jsonCodec) Name() string { return "idemgrpc-json" }

func (jsonCodec) Marshal(v any) ([]byte, error) {
	if m, ok := v.(proto.Message); ok {
		return protojson.Marshal(m)
	}
	return json.Marshal(v)
}

func (jsonCodec) Unmarshal(b []byte, v any) error {
	if m, ok := v.(proto.Message); ok {
		return protojson.Unmarshal(b, m)
	}
	return json.Unmarshal(b, v)
}

// A codec of JSON gets registered messages. It must not make an empty answer of any other.
func TestCodecOfJSON(t *testing.T) {
	t.Parallel()
	inJSON := grpc.CallContentSubtype("idemgrpc-json")
	s := startTyped(t, func() any { return new(walletv1.TransferRequest) }, func(any) (any, error) {
		return &walletv1.TransferResponse{Id: "t1"}, nil
	})
	for i, opts := range [][]grpc.CallOption{{inJSON}, {inJSON}, nil} { // the last one in protobuf
		got := new(walletv1.TransferResponse)
		if replayed, err := s.call("k1", &walletv1.TransferRequest{Amount: 5}, got, opts...); err != nil || replayed != (i > 0) || got.GetId() != "t1" {
			t.Errorf("call %d = %v, %v (replayed %v), want t1", i, got, err, replayed)
		}
	}
	s = startTyped(t, func() any { return new(gogoRequest) }, func(any) (any, error) { return &gogoResponse{ID: "p1"}, nil })
	for range 2 {
		got := new(gogoResponse)
		if _, err := s.call("k2", &gogoRequest{Amount: 1}, got, inJSON); err == nil && got.ID != "p1" {
			t.Errorf("call = %+v, want p1 or an error", got)
		}
	}
	if s.runs != 1 {
		t.Errorf("handler ran %d times, want 1", s.runs)
	}
}

// A client stream keeps a message in a type that its codec knows.
func TestCloneKeepsTheType(t *testing.T) {
	t.Parallel()
	for _, m := range []any{gogoPay(3), &walletv1.TransferRequest{Amount: 1}, dynamicRequest()} {
		got, err := cloneOf(m)
		_, old := m.(protoadapt.MessageV1)
		if err != nil || fmt.Sprintf("%T", got) != fmt.Sprintf("%T", m) || got == m || old && got.(protoadapt.MessageV1).String() == "" {
			t.Errorf("cloneOf(%T) = %T, want a copy of the type", m, got)
		}
	}
	clone, _ := cloneOf(gogoPay(3))
	if got := clone.(*gogoRequest); got.Fee.Int64() != 3 || len(got.Notes) != 22 {
		t.Errorf("cloneOf() = %+v, want all of the message", got)
	}
}
