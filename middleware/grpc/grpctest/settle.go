package grpctest

import (
	"context"
	"fmt"
	"net"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/peer"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// decide settles the attempt of an execution from outside, with the stored outcome of another key.
func (b *bundle) decide(ctx context.Context, key string) {
	x, _ := idem.FromContext(ctx)
	other, err := b.records.Get(context.Background(), idem.NewKeyID("merchant", idem.Key(key)))
	if err != nil {
		b.Errorf("Get(%q) = %v", key, err)
	}
	rec, err := b.records.Get(context.Background(), x.KeyID)
	if err == nil {
		_, err = b.records.Settle(context.Background(), x.KeyID, driver.Settlement{Attempt: rec.Attempt, ID: driver.NewNonce(), State: driver.StateCompleted,
			Response: other.Response, ResultTTL: time.Hour, KeyTTL: time.Hour, Decision: driver.Decision{By: "operator"}})
	}
	if err != nil {
		b.Errorf("settling from outside: %v", err)
	}
}

// settleCases are about the time between a handler and its answer, and about what it runs with.
var settleCases = []testCase{
	{"the status of a call waits for the settlement, and is that of the outcome", func(b *bundle) {
		b.start()
		b.want(b.pay("unary"), codes.OK, false, 1250)
		b.want(b.payout("stream"), codes.OK, false, 1, 2, 3)
		b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			b.decide(ctx, "unary")
			return &walletv1.TransferResponse{Amount: 7}, nil
		}
		early := int32(0)
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			err := sendNumbers(s, early)
			b.decide(s.Context(), "stream")
			return err
		}
		b.want(b.pay("k1"), codes.OK, true, 1250)
		b.want(b.payout("k2"), codes.OK, true, 1, 2, 3)
		early = 1 // a part of an answer is never followed by another answer, nor by OK
		a := b.payout("k3")
		if a.numbers != nil {
			b.want(a, codes.Unavailable, false, 1)
		}
		b.want(b.payout("k3"), codes.OK, true, 1, 2, 3)
	}},
	{"INVALID_ARGUMENT before the handler has done anything leaves the key free", func(b *bundle) {
		taken := false
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			if taken {
				b.take(ctx)
			}
			if req.GetAmount() == 1250 {
				return nil, status.Error(codes.InvalidArgument, "amount")
			}
			if b.engine.Joined() {
				b.take(ctx)
			}
			return paid(req), nil
		}
		corrected := func(key string) answer {
			return b.transfer(b.withKeys(key), &walletv1.TransferRequest{To: "bob", Amount: 1000})
		}
		for i, engine := range []*idem.Engine{b.engine, exchangetest.Conflicting(b, 0), exchangetest.Conflicting(b, 0), b.engine} {
			key := fmt.Sprint("k", i)
			b.engine, taken, b.options.Policy.GateFirst = engine, i == 2, i == 3
			b.start()
			binds := i == 0 || taken
			b.want(b.pay(key), codes.InvalidArgument, false)
			b.want(b.pay(key), codes.InvalidArgument, binds)
			if binds {
				b.wantRefusal(corrected(key), idem.CodeKeyReused)
				continue
			}
			b.want(corrected(key), codes.OK, false, 1000)
			b.want(corrected(key), codes.OK, true, 1000)
		}
	}},
	{"every run gets the same input", func(b *bundle) {
		var seen []string
		look := func(ctx context.Context, req any) {
			b.take(ctx)
			md, _ := metadata.FromIncomingContext(ctx)
			p, _ := peer.FromContext(ctx)
			seen = append(seen, fmt.Sprint(req, md["tenant"], p.LocalAddr))
			md["tenant"][0], p.LocalAddr = "b", new(net.UnixAddr)
		}
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			look(ctx, req.GetAmount())
			req.Amount += 30
			return paid(req), nil
		}
		b.wallet.payout = func(req *walletv1.PayoutRequest, s payoutStream) error {
			look(s.Context(), req.GetCount())
			req.Count++
			return nil
		}
		for key, call := range map[string]func(context.Context) answer{
			"unary":  func(ctx context.Context) answer { return b.transfer(ctx, usual()) },
			"stream": b.stream,
		} {
			seen, b.engine = nil, exchangetest.Conflicting(b, 1)
			b.start()
			a := call(metadata.AppendToOutgoingContext(b.withKeys(key), "tenant", "a"))
			if a.err != nil || len(seen) != 2 || seen[0] != seen[1] {
				b.Errorf("%s: the runs saw %q, %v, want the same twice", key, seen, a.err)
			}
		}
	}},
	{"a handler outlives its client", func(b *bundle) {
		b.options.Policy.DuplicateWait = patience // so that a repeat waits for the handler to end
		started, gone := make(chan struct{}), make(chan struct{})
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			close(started)
			receive(b, "the end of the client", gone)
			if _, ok := ctx.Deadline(); ok || ctx.Err() != nil {
				b.Errorf("the handler's context has a deadline (%v) or ended: %v", ok, ctx.Err())
			}
			return paid(req), nil
		}
		b.start()
		ctx, leave := context.WithCancel(b.withKeys("k1"))
		done := make(chan answer, 1)
		go func() { done <- b.transfer(ctx, usual()) }()
		receive(b, "a start", started)
		leave()
		b.want(receive(b, "an answer", done), codes.Canceled, false)
		close(gone)
		b.want(b.pay("k1"), codes.OK, true, 1250)
		b.wantRuns(1)
	}},
}

// receive waits for a signal.
func receive[T any](b *bundle, what string, c <-chan T) (v T) {
	b.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		b.Errorf("never happened: %s", what) // also called by handlers
	}
	return v
}
