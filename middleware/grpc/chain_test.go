package idemgrpc_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// Two services: the first one's handler calls the second, and fails after that.
// Its next attempt sends the key of the first, so the second pays once.
func TestChainOfServices(t *testing.T) {
	t.Parallel()
	back := setup(t)
	var mu sync.Mutex
	var keys []string
	back.before = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		mu.Lock()
		keys = append(keys, metadata.ValueFromIncomingContext(ctx, "idempotency-key")...)
		mu.Unlock()
		return next(ctx, req)
	}}
	back.dial = []grpc.DialOption{grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(honoured))}
	back.start()

	front := setup(t)
	front.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) { return idem.NotApplied(), nil })
	var operation string
	front.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		x, _ := idem.FromContext(ctx)
		operation = x.OperationID
		resp, err := back.client.Transfer(ctx, req)
		if err == nil && x.Attempt == 1 {
			err = status.Error(codes.Unavailable, "crashed after the call")
		}
		return resp, err
	}
	front.start()
	if a := front.pay("k1"); status.Code(a.err) != codes.Unavailable {
		t.Fatalf("first attempt = %v, want UNAVAILABLE", a.err)
	}
	front.wantPaid(front.pay("k1"), false)
	front.wantRuns(2)
	back.wantRuns(1)
	if len(keys) != 2 || keys[0] != keys[1] || keys[0] == "k1" || keys[0] == "" {
		t.Errorf("keys sent on: %q, want one, and not the caller's", keys)
	}

	// It is the one that the engine derives, so other transports agree.
	var key string
	front.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		x, _ := idem.FromContext(ctx)
		if x.OperationID == operation {
			t.Error("another key has the same operation")
		}
		key = downstreamKey(ctx, t, transferMethod)
		return back.client.Transfer(ctx, usual())
	}
	front.wantPaid(front.pay("k2"), false)
	if keys[2] != key {
		t.Errorf("key sent on = %q, want %q", keys[2], key)
	}
}

// What comes back from a keyed call is no longer taken for "nothing happened".
func TestCallsToOthersPassTheGate(t *testing.T) {
	t.Parallel()
	for _, own := range []string{"", "own-key"} {
		b := setup(t)
		f := &flaky{}
		b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			if own != "" {
				ctx = metadata.AppendToOutgoingContext(ctx, "idempotency-key", own)
			}
			if err := f.call(ctx, transferMethod); err != nil {
				return nil, err
			}
			return nil, status.Error(codes.ResourceExhausted, "slow down")
		}
		b.start()
		b.wantRefusal(b.pay("k1").err, idem.CodeOutcomeUnknown)
		b.wantState("k1", driver.StateUnknown)
	}
}

func downstreamKey(ctx context.Context, t *testing.T, name string) string {
	t.Helper()
	key, err := idem.DownstreamKey(ctx, name)
	if err != nil {
		t.Errorf("DownstreamKey(%q) = %v", name, err)
	}
	return key
}

func TestCallNames(t *testing.T) {
	t.Parallel()
	b := setup(t)
	type name struct{}
	f := &flaky{}
	named := idemgrpc.WithCallName(func(ctx context.Context, _ string) string { s, _ := ctx.Value(name{}).(string); return s })
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		for _, n := range []string{"fee", "amount", "fee", ""} {
			if err := f.call(context.WithValue(ctx, name{}, n), transferMethod, named); err != nil {
				return nil, err
			}
		}
		other := idemgrpc.MustUnaryClientInterceptor(named)(context.WithValue(ctx, name{}, "fee"), transferMethod, &walletv1.TransferRequest{Amount: 2}, nil, nil, f.invoke)
		if !errors.Is(other, idem.ErrCallNameReused) {
			t.Errorf("another call under a used name = %v, want %v", other, idem.ErrCallNameReused)
		}
		f.keys = append(f.keys, downstreamKey(ctx, t, "fee"), downstreamKey(ctx, t, transferMethod))
		return &walletv1.TransferResponse{Id: "t1", Amount: 1250}, nil
	}
	b.start()
	b.wantPaid(b.pay("k1"), false)
	k := f.keys
	if k[0] != k[2] || k[0] == k[1] || k[4] != k[0] || k[5] != k[3] || slices.Contains(k[:3], k[3]) {
		t.Errorf("keys %q, want one for each name", k)
	}
}
