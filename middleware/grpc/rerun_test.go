package idemgrpc

import (
	"context"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
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

func (*conflicting) Nested(context.Context, *idem.Operation) (bool, error) { return false, nil }
func (*conflicting) ReportRefused(context.Context, string, *idem.Refusal)  {}

func interceptors(t *testing.T, policy idem.Policy) (*Interceptors, *conflicting) {
	t.Helper()
	x, err := New(new(idem.Engine), WithDefaultPolicy(policy), WithReplayMetadata("x-run"))
	if err != nil {
		t.Fatal(err)
	}
	e := &conflicting{}
	x.engine = e
	return x, e
}

// After a conflict only the answer of the last run counts.
func TestAnswerOfTheLastRun(t *testing.T) {
	t.Parallel()
	x, e := interceptors(t, idem.Policy{AllowGlobalKeys: true, MaxResponseBody: 1 << 10})
	for name, last := range map[string]proto.Message{
		"a message": &walletv1.TransferResponse{Id: "t1"},
		"an error":  nil,
	} {
		run := 0
		answer, err := x.unary(metadata.NewIncomingContext(t.Context(), metadata.Pairs(DefaultMetadataKey, "k1")), &walletv1.TransferRequest{},
			&grpc.UnaryServerInfo{FullMethod: walletv1.WalletService_Transfer_FullMethodName},
			func(ctx context.Context, _ any) (any, error) {
				if run++; run == 1 {
					_ = grpc.SetHeader(ctx, metadata.Pairs("x-run", "1", "etag", "lost"))
					_ = grpc.SendHeader(ctx, nil)
					_ = grpc.SetTrailer(ctx, metadata.Pairs("x-run", "1"))
					return &walletv1.TransferResponse{Id: "lost"}, nil
				}
				if err := grpc.SetHeader(ctx, metadata.Pairs("x-run", "2")); err != nil {
					t.Errorf("SetHeader() = %v", err)
				}
				if last == nil {
					return nil, context.Canceled
				}
				return last, nil
			})
		if run != 2 || (err == nil) != (last != nil) || last != nil && answer != any(last) {
			t.Errorf("%s: answer = %v, %v after %d runs, want that of the second", name, answer, err, run)
		}
		o, err := decode(&e.stored)
		if err != nil || len(o.GetMessages()) != len(messagesIn(last)) || !slices.Equal(e.stored.Header["x-run"], []string{"2"}) ||
			len(e.stored.Header) != 1 || len(e.stored.Trailer) != 0 {
			t.Errorf("%s: stored = %v with header %v and trailer %v, %v, want what the second run answered", name, o, e.stored.Header, e.stored.Trailer, err)
		}
	}
}

func messagesIn(m proto.Message) []proto.Message {
	if m == nil {
		return nil
	}
	return []proto.Message{m}
}

// The messages of a stream are sent as they come, so its handler cannot run again.
func TestStreamsRunOnce(t *testing.T) {
	t.Parallel()
	x, _ := interceptors(t, idem.Policy{AllowGlobalKeys: true})
	runs := 0
	err := x.stream(nil, &emptyStream{ctx: metadata.NewIncomingContext(t.Context(), metadata.Pairs(DefaultMetadataKey, "k1"))},
		&grpc.StreamServerInfo{FullMethod: walletv1.WalletService_Payout_FullMethodName, IsServerStream: true},
		func(any, grpc.ServerStream) error { runs++; return nil })
	if err != nil || runs != 1 {
		t.Errorf("call = %v after %d runs, want one run", err, runs)
	}
}

// emptyStream is a stream with an empty request.
type emptyStream struct {
	grpc.ServerStream
	ctx context.Context
}

func (s *emptyStream) Context() context.Context { return s.ctx }
func (*emptyStream) RecvMsg(any) error          { return nil }
