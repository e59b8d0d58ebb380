package idemgrpc_test

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// metTwice is a server whose calls meet interceptors for an outer policy and then
// for an inner one.
func metTwice(t *testing.T, change func(inner *idem.Policy)) *bundle {
	t.Helper()
	b := setup(t)
	b.policy.DuplicateWait = time.Hour // a call must not wait for itself
	inner := b.policy
	change(&inner)
	x := make([]*idemgrpc.Interceptors, 2)
	for i, p := range []idem.Policy{b.policy, inner} {
		var err error
		if x[i], err = idemgrpc.New(b.engine, named(p, transferMethod, payoutMethod)); err != nil {
			t.Fatal(err)
		}
	}

	b.server = grpc.NewServer(grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(x[0].Unary(), x[0].Unary(), x[1].Unary()),
		grpc.ChainStreamInterceptor(x[0].Stream(), x[0].Stream(), x[1].Stream()))
	walletv1.RegisterWalletServiceServer(b.server, b.wallet)
	b.conn = serve(t, b.server)
	b.client = walletv1.NewWalletServiceClient(b.conn)
	return b
}

func TestInterceptorsMetTwiceExecuteOnce(t *testing.T) {
	t.Parallel()
	b := metTwice(t, func(*idem.Policy) {})
	b.wantPaid(b.pay("k1"), false)
	b.wantPaid(b.pay("k1"), true)
	b.wantRuns(1)
	for range 2 {
		if got := b.payout(b.withKeys("k2"), 3); len(got.numbers) != 3 || got.err != nil {
			t.Errorf("Payout() = %v, %v, want 3 numbers", got.numbers, got.err)
		}
	}
	b.wantRuns(2)
}

// The Name of a policy says which method it is for, and makes it no other policy. So a method that
// another one calls within the process is a part of that one's execution.
func TestMethodsOfOnePolicyNest(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := idemgrpc.New(b.engine, named(b.policy, transferMethod, balanceMethod))
	if err != nil {
		t.Fatal(err)
	}
	b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		_, err := x.Unary()(ctx, &walletv1.GetBalanceRequest{}, &grpc.UnaryServerInfo{FullMethod: balanceMethod},
			func(context.Context, any) (any, error) { return &walletv1.GetBalanceResponse{}, nil })
		return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, err
	}
	b.server = grpc.NewServer(grpc.UnaryInterceptor(x.Unary()))
	walletv1.RegisterWalletServiceServer(b.server, b.wallet)
	b.conn = serve(t, b.server)
	b.client = walletv1.NewWalletServiceClient(b.conn)
	b.wantPaid(b.pay("k1"), false)
	b.wantPaid(b.pay("k1"), true)
	b.wantRuns(1)
}

func TestInterceptorsMetTwiceUnderOtherPoliciesAreAWiringError(t *testing.T) {
	t.Parallel()
	b := metTwice(t, func(inner *idem.Policy) { inner.HandlerTimeout = time.Hour })
	a := b.pay("k1")
	b.wantRefusal(a.err, idem.CodeOutcomeUnknown) // the handler has relayed "internal"
	got := b.payout(b.withKeys("k2"), 3)
	b.wantRefusal(got.err, idem.CodeOutcomeUnknown)
	b.wantRuns(0)
	b.wantState("k1", driver.StateUnknown)
	b.wantState("k2", driver.StateUnknown)
}
