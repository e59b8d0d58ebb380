package idemgrpc_test

import (
	"context"
	"strconv"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// quiet has no observer: keeping events is what tests do.
func quiet(b *testing.B) *bundle {
	b.Helper()
	s := setup(b)
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		b.Fatal(err)
	}
	s.engine = engine
	b.Cleanup(func() { _ = engine.Close(context.Background()) })
	return s
}

func benchBundle(b *testing.B, protect bool) *bundle {
	b.Helper()
	s := quiet(b)
	s.policies = s.policyOf(payoutMethod)
	if protect {
		s.policies = s.policyOf(payoutMethod, transferMethod)
	}
	return s.start()
}

func benchCall(b *testing.B, s *bundle, key string) {
	b.Helper()
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.MD{"idempotency-key": {key}})
	if _, err := s.client.Transfer(ctx, usual()); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkUnary is a whole call over a listener in memory: bare, with the
// interceptor and a fresh key, and as a replay.
func BenchmarkUnary(b *testing.B) {
	b.Run("bare", func(b *testing.B) {
		s := benchBundle(b, false)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			benchCall(b, s, strconv.Itoa(i)) // as fresh sends it: HPACK sends a key that changes in full
		}
	})
	b.Run("fresh", func(b *testing.B) {
		s := benchBundle(b, true)
		b.ReportAllocs()
		for i := 0; b.Loop(); i++ {
			benchCall(b, s, strconv.Itoa(i))
		}
	})
	b.Run("replay", func(b *testing.B) {
		s := benchBundle(b, true)
		b.ReportAllocs()
		for b.Loop() {
			benchCall(b, s, "k")
		}
	})
}

// BenchmarkInterceptor is what the interceptor adds to a call, alone.
func BenchmarkInterceptor(b *testing.B) {
	for name, key := range map[string]func(int) string{"fresh": strconv.Itoa, "replay": func(int) string { return "k" }} {
		b.Run(name, func(b *testing.B) {
			s := quiet(b)
			unary := idemgrpc.MustNew(s.engine, s.policyOf(transferMethod)).Unary()
			info := &grpc.UnaryServerInfo{FullMethod: transferMethod}
			req, resp := usual(), &walletv1.TransferResponse{Id: "t1", Amount: 1250}
			handler := func(context.Context, any) (any, error) { return resp, nil }
			stream := grpc.NewContextWithServerTransportStream(context.Background(), nowhere{})
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				ctx := metadata.NewIncomingContext(stream, metadata.MD{"idempotency-key": {key(i)}})
				if _, err := unary(ctx, req, info, handler); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}

// nowhere is a stream that goes nowhere.
type nowhere struct{}

func (nowhere) Method() string               { return transferMethod }
func (nowhere) SetHeader(metadata.MD) error  { return nil }
func (nowhere) SendHeader(metadata.MD) error { return nil }
func (nowhere) SetTrailer(metadata.MD) error { return nil }

// BenchmarkCanonical is the form of a message of twenty-odd fields.
func BenchmarkCanonical(b *testing.B) {
	for name, m := range map[string]proto.Message{"transfer": usual(), "everything": everything()} {
		b.Run(name, func(b *testing.B) {
			var buf []byte
			b.ReportAllocs()
			for b.Loop() {
				var err error
				if buf, err = idemgrpc.AppendCanonical(buf[:0], m); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
