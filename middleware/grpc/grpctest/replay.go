package grpctest

import (
	"context"
	"slices"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// replayCases are about the answers to repeats.
var replayCases = []testCase{
	{"a message", func(b *bundle) {
		b.start()
		b.want(b.pay("k1"), codes.OK, false, 1250)
		for _, form := range []string{"k1", `"k1"`, " k1 "} {
			b.want(b.pay(form), codes.OK, true, 1250)
		}
		b.wantState("k1", driver.StateCompleted)
		b.want(b.pay("k2"), codes.OK, false, 1250)
		b.wantRuns(2)
	}},
	{"an error is replayed whole", func(b *bundle) {
		b.options.Replay = []string{"X-Reason", "x-sum-bin"}
		detail, err := anypb.New(structpb.NewStringValue("limit of 10"))
		if err != nil {
			b.Fatal(err)
		}
		want := &spb.Status{Code: int32(codes.FailedPrecondition), Message: "insufficient funds: é\n", Details: []*anypb.Any{
			detail, {TypeUrl: "type.example.com/not.linked.Here", Value: []byte{8, 1}}}}
		b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			_ = grpc.SetHeader(ctx, metadata.Pairs("x-reason", "a", "etag", "1", "set-cookie", "s=1", "x-live", "1"))
			_ = grpc.SendHeader(ctx, metadata.Pairs("X-Reason", "b"))
			if err := grpc.SetHeader(ctx, metadata.Pairs("x-reason", "late")); err == nil {
				b.Error("SetHeader() after SendHeader = nil, want an error")
			}
			_ = grpc.SetTrailer(ctx, metadata.Pairs("x-sum-bin", "\x00\xff", "x-live", "1"))
			return nil, status.ErrorProto(want)
		}
		b.start()
		for _, replayed := range []bool{false, true, true} {
			a := b.pay("k1")
			b.want(a, codes.FailedPrecondition, replayed)
			if got := status.Convert(a.err).Proto(); !proto.Equal(got, want) {
				b.Errorf("status = %v, want %v", got, want)
			}
			if !slices.Equal(a.header.Get("x-reason"), []string{"a", "b"}) || !slices.Equal(a.header.Get("etag"), []string{"1"}) ||
				!slices.Equal(a.trailer.Get("x-sum-bin"), []string{"\x00\xff"}) {
				b.Errorf("replayed %v: header %v, trailer %v, want those of the handler", replayed, a.header, a.trailer)
			}
			live := len(a.header.Get("x-live")) + len(a.trailer.Get("x-live")) + len(a.header.Get("set-cookie"))
			if want := map[bool]int{false: 3, true: 0}[replayed]; live != want {
				b.Errorf("replayed %v: header %v, trailer %v, want %d of those that are not kept", replayed, a.header, a.trailer, want)
			}
		}
		b.wantRuns(1)
		rec, err := b.store.Get(b.Context(), idem.NewKeyID("merchant", "k1"))
		if err != nil || len(rec.Response.Header) != 2 || len(rec.Response.Trailer) != 1 {
			b.Errorf("stored metadata = %v and %v, %v, want only what is replayed", rec.Response.Header, rec.Response.Trailer, err)
		}
	}},
	{"a stream, message by message", func(b *bundle) {
		b.options.Replay = []string{"x-cost", "x-total"}
		b.wallet.payout = func(req *walletv1.PayoutRequest, s payoutStream) error {
			_ = s.SetHeader(metadata.Pairs("x-cost", "7", "x-other", "1"))
			_ = grpc.SetHeader(s.Context(), metadata.Pairs("x-cost", "8"))
			s.SetTrailer(metadata.Pairs("x-total", "3", "x-other", "1"))
			return sendNumbers(s, req.GetCount())
		}
		b.start()
		for _, replayed := range []bool{false, true, true} {
			a := b.payout("k1")
			b.want(a, codes.OK, replayed, 1, 2, 3)
			if !slices.Equal(a.header.Get("x-cost"), []string{"7", "8"}) || !slices.Equal(a.trailer.Get("x-total"), []string{"3"}) ||
				(a.header.Get("x-other") == nil) != replayed || (a.trailer.Get("x-other") == nil) != replayed {
				b.Errorf("replayed %v: header %v, trailer %v, want what is on the list, and live the rest", replayed, a.header, a.trailer)
			}
		}
		b.wantRuns(1)
	}},
	{"a stream that ends in an error, to its end", func(b *bundle) {
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			if err := sendNumbers(s, 2); err != nil {
				return err
			}
			return status.Error(codes.FailedPrecondition, "out of money")
		}
		b.start()
		for _, replayed := range []bool{false, true} {
			a := b.payout("k1")
			b.want(a, codes.FailedPrecondition, replayed, 1, 2)
			if got := status.Convert(a.err).Message(); got != "out of money" {
				b.Errorf("message %q, want that of the handler", got)
			}
		}
		b.wantRuns(1)
	}},
	{"a stream over the limit is completed and not kept", func(b *bundle) {
		b.options.Policy.MaxResponseBody = 64
		b.start()
		b.want(b.payout("k1"), codes.OK, false, 1, 2, 3)
		b.wantState("k1", driver.StateCompleted)
		b.wantRefusal(b.payout("k1"), idem.CodeResultUnavailable)
		b.wantRuns(1)
	}},
	{"final codes are replayed", func(b *bundle) {
		for _, code := range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.AlreadyExists, codes.FailedPrecondition, codes.OutOfRange, codes.Unimplemented} {
			b.fails(status.Error(code, "final"), func(context.Context) {})
			for _, replayed := range []bool{false, true} {
				b.want(b.pay("unary-"+code.String()), code, replayed)
				b.want(b.payout("stream-"+code.String()), code, replayed)
			}
		}
		b.wantRuns(12)
	}},
	{"codes of a call that was not admitted give the key back", func(b *bundle) {
		for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted} {
			b.fails(status.Error(code, "not admitted"), func(context.Context) {})
			for range 2 {
				b.want(b.pay("unary"), code, false)
				b.want(b.payout("stream"), code, false)
			}
			b.wantState("unary", driver.StateReleased)
		}
		b.wantRuns(12)
	}},
}
