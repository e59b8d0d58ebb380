package idemgrpc

import (
	"context"
	"fmt"
	"net"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// conflicting is an engine whose transactions meet a conflict at their end, so that a handler runs
// again if it can.
type conflicting struct{ stored idem.Response }

func (c *conflicting) Do(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error) {
	if !op.RunOnce {
		if _, err := h(ctx); err != nil {
			return idem.Result{}, err
		}
	}
	var err error
	c.stored, err = h(ctx)
	return idem.Result{Response: c.stored}, err
}

func (c *conflicting) DoWithoutKey(ctx context.Context, op idem.Operation, h idem.Handler) (idem.Result, error) {
	return c.Do(ctx, op, h)
}

func (*conflicting) ReportUnprotected(context.Context, string)             {}
func (*conflicting) Nested(context.Context, *idem.Operation) (bool, error) { return false, nil }
func (*conflicting) MayRunAgain(op *idem.Operation) bool                   { return !op.RunOnce }
func (*conflicting) Joined() bool                                          { return true }
func (*conflicting) ReportRefused(context.Context, string, *idem.Refusal)  {}

func interceptors(t *testing.T, policy idem.Policy) (*Interceptors, *conflicting) {
	t.Helper()
	x, err := New(idem.MustNew(memorylock.New(), memorystore.New()), []idem.Policy{policy}, Config{Replay: []string{"x-run"}})
	if err != nil {
		t.Fatal(err)
	}
	e := &conflicting{}
	x.engine = e
	return x, e
}

// Every run gets what the client sent, whatever an earlier run has done to it. What a goroutine
// of an earlier run answers late is no part of the answer either.
func TestEveryRunGetsTheSameInput(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		req    any
		change func(req any)
	}{
		"generated message": {&walletv1.TransferRequest{To: "bob", Amount: 1000, Note: "n"}, func(req any) {
			m := req.(*walletv1.TransferRequest)
			m.Amount, m.To = m.GetAmount()+30, "eve"
			m.ProtoReflect().SetUnknown([]byte{0x38, 1})
		}},
		"what a message holds": {everyKind(), func(req any) {
			m := req.(*walletv1.Kinds)
			m.BytesField[0], m.PackedField[0], m.StringsField[0] = 9, 9, "changed"
			m.MessageField.Int32Field, m.IntMap[1] = 9, "changed"
			delete(m.GetIntMap(), 2)
		}},
		"dynamic message": {dynamicRequest(), func(req any) {
			m := req.(*dynamicpb.Message)
			m.Set(m.Descriptor().Fields().ByName("amount"), protoreflect.ValueOfInt64(1030))
		}},
		"message of gogo/protobuf": {&gogoRequest{To: "bob", Amount: 1000}, func(req any) {
			m := req.(*gogoRequest)
			m.Amount += 30
		}},
	} {
		t.Run(name, func(t *testing.T) {
			x, _ := interceptors(t, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()})
			var seen []string
			var late func()
			stream := &sentMetadata{}
			ctx := peer.NewContext(grpc.NewContextWithServerTransportStream(t.Context(), stream), &peer.Peer{LocalAddr: &net.UnixAddr{Name: "client"}})
			ctx = metadata.NewIncomingContext(ctx, metadata.Pairs(DefaultMetadataKey, "k1", "tenant", "a"))
			_, err := x.unary(ctx, tt.req, &grpc.UnaryServerInfo{FullMethod: walletv1.WalletService_Transfer_FullMethodName},
				func(ctx context.Context, req any) (any, error) {
					md, _ := metadata.FromIncomingContext(ctx)
					p, _ := peer.FromContext(ctx)
					seen = append(seen, fmt.Sprintf("%x %v %v of %T", wireOf(t, req), md, p.LocalAddr, req))
					if late != nil {
						late()
					}
					late = func() {
						_ = grpc.SetHeader(ctx, metadata.Pairs("etag", "lost"))
						_ = grpc.SetTrailer(ctx, metadata.Pairs("etag", "lost"))
					}
					tt.change(req)
					md["tenant"][0], p.LocalAddr = "b", nil
					return &walletv1.TransferResponse{}, nil
				})
			if err != nil || len(seen) != 2 || seen[0] != seen[1] {
				t.Errorf("the runs saw %q, %v, want the same twice", seen, err)
			}
			if len(stream.header) != 0 || len(stream.trailer) != 0 {
				t.Errorf("the client got header %v and trailer %v, want nothing of the first run", stream.header, stream.trailer)
			}
		})
	}
}

func everyKind() *walletv1.Kinds {
	return &walletv1.Kinds{BytesField: []byte{1}, PackedField: []int32{1}, StringsField: []string{"a"},
		MessageField: &walletv1.Kinds{Int32Field: 1}, IntMap: map[int32]string{1: "a", 2: "b"}}
}

func dynamicRequest() *dynamicpb.Message {
	m := dynamicpb.NewMessage((&walletv1.TransferRequest{}).ProtoReflect().Descriptor())
	m.Set(m.Descriptor().Fields().ByName("amount"), protoreflect.ValueOfInt64(1000))
	return m
}

// wireOf is what gRPC would send.
func wireOf(t *testing.T, req any) []byte {
	t.Helper()
	if msg, ok := req.(proto.Message); ok {
		b, err := proto.MarshalOptions{Deterministic: true}.Marshal(msg)
		if err != nil {
			t.Fatal(err)
		}
		return b
	}
	b, err := serialise(req)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

// sentMetadata is what a client gets.
type sentMetadata struct{ header, trailer metadata.MD }

func (*sentMetadata) Method() string { return walletv1.WalletService_Transfer_FullMethodName }

func (s *sentMetadata) SetHeader(md metadata.MD) error {
	s.header = metadata.Join(s.header, md)
	return nil
}

func (s *sentMetadata) SendHeader(md metadata.MD) error { return s.SetHeader(md) }

func (s *sentMetadata) SetTrailer(md metadata.MD) error {
	s.trailer = metadata.Join(s.trailer, md)
	return nil
}
