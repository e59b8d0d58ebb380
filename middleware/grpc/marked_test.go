package idemgrpc_test

import (
	"context"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// A handler that forwards the answer of another service may have its mark of a stored outcome. Here
// the mark would tell that an outcome in doubt is final.
func TestMarkOfAnotherServiceIsNotForwarded(t *testing.T) {
	t.Parallel()
	b := setup(t)
	mark := metadata.Pairs("idempotent-replayed", "true")
	failure := status.Error(codes.Internal, "of another service")
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		_, _ = grpc.SetHeader(ctx, mark), grpc.SetTrailer(ctx, mark)
		return nil, failure
	}
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		_ = s.SendHeader(mark)
		s.SetTrailer(mark)
		return failure
	}
	b.start()
	var header, trailer metadata.MD
	_, err := b.client.Transfer(b.withKeys("k1"), &walletv1.TransferRequest{}, grpc.Header(&header), grpc.Trailer(&trailer))
	if status.Code(err) != codes.Internal || len(header.Get("idempotent-replayed"))+len(trailer.Get("idempotent-replayed")) > 0 {
		t.Errorf("Transfer() = %v with %v and %v, want no mark", err, header, trailer)
	}
	s, err := b.client.Payout(b.withKeys("k2"), &walletv1.PayoutRequest{})
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Recv()
	header, _ = s.Header()
	if status.Code(err) != codes.Internal || len(header.Get("idempotent-replayed"))+len(s.Trailer().Get("idempotent-replayed")) > 0 {
		t.Errorf("Payout() = %v with %v and %v, want no mark", err, header, s.Trailer())
	}
}

// Only the mark of this package ends a call. Another system may use the metadata in its own way.
func TestClientTakesNoOtherValueForTheMark(t *testing.T) {
	t.Parallel()
	for mark, want := range map[string]int{"true": 1, "false": 2, "": 2} {
		synctest.Test(t, func(t *testing.T) {
			f := &flaky{errs: []error{status.Error(codes.Internal, "no")}, trailers: []metadata.MD{metadata.Pairs("idempotent-replayed", mark)}}
			_ = f.call(t.Context(), transferMethod)
			if len(f.times) != want {
				t.Errorf("after the mark %q it asked %d times, want %d", mark, len(f.times), want)
			}
		})
	}
}
