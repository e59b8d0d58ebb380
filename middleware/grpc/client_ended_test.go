package idemgrpc_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/metadata"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// What a handler has left running can read, and change nothing.
func TestClientsSendNothingForAnExecutionThatHasEnded(t *testing.T) {
	t.Parallel()
	back := setup(t)
	back.dial = []grpc.DialOption{
		grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(honoured)),
		grpc.WithStreamInterceptor(idemgrpc.MustStreamClientInterceptor(honoured)),
	}
	back.start()
	front := setup(t)
	var left context.Context
	front.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		left = context.WithoutCancel(ctx)
		return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, nil
	}
	front.start()
	front.wantPaid(front.pay("k1"), false)
	for name, call := range map[string]func(ctx context.Context) error{
		"unary": func(ctx context.Context) error { _, err := back.client.Transfer(ctx, usual()); return err },
		"server stream": func(ctx context.Context) error {
			_, err := back.client.Payout(ctx, &walletv1.PayoutRequest{Count: 1})
			return err
		},
		"stream of requests": func(ctx context.Context) error { _, err := back.client.Upload(ctx); return err },
		"with a key of its own": func(ctx context.Context) error {
			_, err := back.client.Transfer(metadata.AppendToOutgoingContext(ctx, "idempotency-key", "own"), usual())
			return err
		},
		"without a key": func(ctx context.Context) error {
			return new(flaky).call(ctx, transferMethod, idemgrpc.WithKeyedMethods(func(string) bool { return false }))
		},
	} {
		if err := call(left); !errors.Is(err, idem.ErrExecutionEnded) {
			t.Errorf("%s: %v, want %v", name, err, idem.ErrExecutionEnded)
		}
	}
	back.wantRuns(0)
	if _, err := back.client.GetBalance(left, &walletv1.GetBalanceRequest{}); err != nil {
		t.Errorf("GetBalance() = %v: it has no side effects", err)
	}
}
