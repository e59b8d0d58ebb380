package grpctest

import (
	"context"
	"errors"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// serveOptional serves the wallet. Its methods take calls without a key.
func (b *bundle) serveOptional(engine *idem.Engine) {
	b.Helper()
	b.engine, b.options.OptionalKey = engine, []string{"/wallet.v1.WalletService/*"}
	b.wallet.runs.Store(0)
	b.start()
}

// keylessCases are about calls without a key, to methods where it is optional.
var keylessCases = []testCase{
	{"with a lock the handler runs as without the interceptor", func(b *bundle) {
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			if _, ok := idem.FromContext(ctx); ok {
				b.Error("it runs in an execution")
			}
			if _, err := idem.DownstreamKey(ctx, "bank"); !errors.Is(err, idem.ErrNoExecution) {
				b.Errorf("DownstreamKey() = %v, want %v", err, idem.ErrNoExecution)
			}
			return paid(req), nil
		}
		b.serveOptional(b.engine)
		for range 2 {
			b.want(b.pay(), codes.OK, false, 1250)
			b.want(b.payout(), codes.OK, false, 1, 2, 3)
		}
		b.wantRuns(4)
		if n := b.records.Len(); n != 0 {
			b.Errorf("%d records, want none", n)
		}
		b.wantWithoutKey(2)
		b.wantRefusal(b.pay("k1", "k2"), idem.CodeKeyInvalid)
	}},
	{"in joined mode each call commits", func(b *bundle) {
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			b.take(ctx)
			if _, ok := idem.FromContext(ctx); ok {
				b.Error("FromContext() is true without a key")
			}
			if _, err := idem.CheckOwner(ctx); err != nil {
				b.Errorf("CheckOwner() = %v", err)
			}
			if _, err := idem.DownstreamKey(ctx, "bank"); !errors.Is(err, idem.ErrUndeclared) {
				b.Errorf("DownstreamKey() = %v, want %v as with a key", err, idem.ErrUndeclared)
			}
			return paid(req), nil
		}
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error { return b.sendEarly(s, true) }
		b.serveOptional(exchangetest.Conflicting(b, 0))
		for range 2 {
			b.want(b.pay(), codes.OK, false, 1250)
			a := b.payout()
			if b.want(a, codes.OK, false, 1, 2, 3); len(a.header.Get("x-paid")) != 1 || len(a.trailer.Get("x-paid")) != 1 {
				b.Errorf("header %v and trailer %v, want those of the handler", a.header, a.trailer)
			}
		}
		b.wantRuns(4)
		b.wantWithoutKey(2)
	}},
	{"in joined mode a failure is that of the handler", func(b *bundle) {
		code := codes.OK
		failing := func(ctx context.Context) error {
			b.take(ctx)
			return status.Error(code, "no")
		}
		b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			return nil, failing(ctx)
		}
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error { return failing(s.Context()) }
		b.serveOptional(exchangetest.RefusingCommit(b)) // none comes so far
		for _, code = range []codes.Code{codes.InvalidArgument, codes.NotFound, codes.ResourceExhausted, codes.Aborted, codes.Unavailable, codes.Internal} {
			b.want(b.pay(), code, false)
			b.want(b.payout(), code, false)
		}
	}},
	{"in joined mode a failed COMMIT is not told as a success", func(b *bundle) {
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			b.take(ctx)
			_ = grpc.SendHeader(ctx, metadata.Pairs("x-paid", "1"))
			return paid(req), nil
		}
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error { return b.sendEarly(s, true) }
		for code, engine := range map[idem.Code]*idem.Engine{
			idem.CodeUnavailable: exchangetest.RefusingCommit(b), idem.CodeOutcomeUnknown: exchangetest.LosingCommit(b),
		} {
			b.serveOptional(engine)
			for _, a := range []answer{b.pay(), b.payout()} {
				b.wantRefusal(a, code)
				if len(a.header.Get("x-paid"))+len(a.trailer.Get("x-paid")) > 0 {
					b.Errorf("header %v and trailer %v, want nothing of the handler", a.header, a.trailer)
				}
			}
		}
	}},
	{"in joined mode a conflict runs the handler again", func(b *bundle) {
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			b.take(ctx)
			req.Amount++
			return paid(req), nil
		}
		b.serveOptional(exchangetest.Conflicting(b, 1))
		b.want(b.pay(), codes.OK, false, 1251)
		b.wantRuns(2)
	}},
	{"a message over the limit is refused before a transaction begins", func(b *bundle) {
		b.options.Policy.MaxRequestBody = 1
		b.serveOptional(exchangetest.Conflicting(b, 0))
		b.wantRefusal(b.pay(), idem.CodeBodyTooLarge)
		b.wantRuns(0)
	}},
}

// wantWithoutKey wants so many calls of each of two methods to be counted.
func (b *bundle) wantWithoutKey(n uint64) {
	b.Helper()
	all := b.engine.WithoutKey()
	if len(all) != 2 || all[0].Count != n || all[1].Count != n || all[0].Route != "/wallet.v1.WalletService/Payout" || all[1].Route != "/wallet.v1.WalletService/Transfer" {
		b.Errorf("WithoutKey() = %+v, want %d of each method", all, n)
	}
}
