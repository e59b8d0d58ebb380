package grpctest

import (
	"context"
	"errors"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/middleware/exchange/exchangetest"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

type payoutStream = grpc.ServerStreamingServer[walletv1.PayoutResponse]

// take takes the transaction of an execution, as a handler that writes to its database.
func (b *bundle) take(ctx context.Context) {
	if _, err := idem.JoinedTxOf(ctx); err != nil {
		b.Errorf("JoinedTxOf() = %v", err)
	}
}

// sendEarly takes the transaction and sends three messages of one value that is used again, with
// header and trailer.
func (b *bundle) sendEarly(s payoutStream, header bool) error {
	b.take(s.Context())
	if header {
		if err := s.SendHeader(metadata.Pairs("x-paid", "1")); err != nil {
			return err
		}
	}
	s.SetTrailer(metadata.Pairs("x-paid", "1"))
	m := new(walletv1.PayoutResponse)
	for range 3 {
		m.Number++
		if err := s.Send(m); err != nil {
			return err
		}
	}
	return nil
}

// joinedCases are about an engine from [idem.NewJoined]. Until its COMMIT is known, nothing of a
// success may reach the client.
var joinedCases = []testCase{
	{"a failed COMMIT is not told as a success", func(b *bundle) {
		b.engine = exchangetest.RefusingCommit(b)
		b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			b.take(ctx)
			_ = grpc.SendHeader(ctx, metadata.Pairs("x-paid", "1"))
			_ = grpc.SetTrailer(ctx, metadata.Pairs("x-paid", "1"))
			return paid(req), nil
		}
		header := false
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error { return b.sendEarly(s, header) }
		for _, others := range []bool{false, true} {
			b.options.Policy.CallsOtherSystems = others
			b.start()
			for _, header = range []bool{false, true} {
				for _, a := range []answer{b.pay(driver.NewNonce().String()), b.payout(driver.NewNonce().String())} {
					b.wantRefusal(a, idem.CodeUnavailable)
					if len(a.header.Get("x-paid"))+len(a.trailer.Get("x-paid")) > 0 {
						b.Errorf("header %v and trailer %v, want nothing of the handler", a.header, a.trailer)
					}
				}
			}
		}
	}},
	{"a stream is sent after its COMMIT", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			err := b.sendEarly(s, true)
			if s.SetHeader(metadata.Pairs("x-late", "1")) == nil {
				b.Error("SetHeader() after SendHeader = nil, want an error")
			}
			return err
		}
		b.start()
		first := b.payout("k1")
		b.want(first, codes.OK, false, 1, 2, 3)
		if len(first.header.Get("x-paid")) != 1 || len(first.trailer.Get("x-paid")) != 1 {
			b.Errorf("header %v and trailer %v, want those of the handler", first.header, first.trailer)
		}
		b.want(b.payout("k1"), codes.OK, true, 1, 2, 3)
		b.wantRuns(1)
	}},
	{"a stream over the limit of what is stored is sent once", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		b.options.Policy.MaxResponseBody = 1
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error { return b.sendEarly(s, false) }
		b.start()
		b.want(b.payout("k1"), codes.OK, false, 1, 2, 3)
		b.wantRefusal(b.payout("k1"), idem.CodeResultUnavailable)
		b.wantRuns(1)
	}},
	{"a stream over the limit of what is held commits, and its success is told", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		b.options.Policy.MaxResponseBody, b.options.Policy.MaxResponseHeld = 1, 100
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error { return b.sendEarly(s, false) }
		b.start()
		for range 2 {
			b.wantRefusal(b.payout("k1"), idem.CodeResultUnavailable)
		}
		b.wantState("k1", driver.StateCompleted)
		b.wantRuns(1)
	}},
	{"an endless stream ends with its context", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		b.options.Policy.MaxResponseBody, b.options.Policy.MaxResponseHeld, b.options.Policy.HandlerTimeout = 1, 1, 50*time.Millisecond
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			for {
				if err := b.sendEarly(s, false); err != nil {
					if status.Code(err) != codes.DeadlineExceeded {
						b.Errorf("Send() = %v, want %v", err, codes.DeadlineExceeded)
					}
					return nil
				}
			}
		}
		b.start()
		b.wantRefusal(b.payout("k1"), idem.CodeResultUnavailable)
	}},
	{"a stream that fails sends its status alone", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		code := codes.NotFound
		b.options.Policy.MaxResponseBody, b.options.Policy.MaxResponseHeld = 100, 100 // for the status
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			if err := b.sendEarly(s, true); err != nil {
				return err
			}
			return status.Error(code, "undone")
		}
		b.start()
		b.want(b.payout("k1"), codes.NotFound, false)
		b.want(b.payout("k1"), codes.NotFound, true)
		b.wantRuns(1)
		code = codes.Unavailable // rolled back, and a repeat runs
		b.want(b.payout("k2"), codes.Unavailable, false)
		b.want(b.payout("k2"), codes.Unavailable, false)
		b.wantRuns(3)
	}},
	{"a stream that panics sends nothing", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		b.outside = recovering
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			_ = b.sendEarly(s, true)
			panic("boom")
		}
		b.start()
		b.want(b.payout("k1"), codes.Internal, false)
	}},
	{"after a conflict only the last run is told", func(b *bundle) {
		b.options.Replay = []string{"x-paid"}
		b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
			b.take(ctx)
			if b.wallet.runs.Load() == 1 {
				_, _ = grpc.SetHeader(ctx, metadata.Pairs("x-paid", "1")), grpc.SetTrailer(ctx, metadata.Pairs("x-paid", "1"))
				_ = grpc.SendHeader(ctx, nil)
				return &walletv1.TransferResponse{Amount: 1}, nil
			}
			return &walletv1.TransferResponse{Amount: 7}, grpc.SetHeader(ctx, metadata.Pairs("x-paid", "2"))
		}
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			if b.wallet.runs.Load() == 1 {
				return b.sendEarly(s, true)
			}
			b.take(s.Context())
			_ = s.SetHeader(metadata.Pairs("x-paid", "2"))
			return s.Send(&walletv1.PayoutResponse{Number: 7})
		}
		for _, call := range []func(...string) answer{b.pay, b.payout} {
			b.engine = exchangetest.Conflicting(b, 1)
			b.wallet.runs.Store(0)
			b.start()
			for _, replayed := range []bool{false, true} {
				a := call("k1")
				b.want(a, codes.OK, replayed, 7)
				if !slices.Equal(a.header.Get("x-paid"), []string{"2"}) || len(a.trailer.Get("x-paid")) > 0 {
					b.Errorf("header %v and trailer %v, want nothing of the first run", a.header, a.trailer)
				}
			}
			b.wantRuns(2)
		}
	}},
	{"a message after the end of the handler is not sent", func(b *bundle) {
		b.engine = exchangetest.Conflicting(b, 0)
		var left payoutStream
		b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
			left = s
			return b.sendEarly(s, false)
		}
		b.start()
		b.want(b.payout("k1"), codes.OK, false, 1, 2, 3)
		if err := left.Send(new(walletv1.PayoutResponse)); !errors.Is(err, idem.ErrExecutionEnded) {
			b.Errorf("Send() = %v, want %v", err, idem.ErrExecutionEnded)
		}
	}},
}

// recovering makes statuses of panics.
var recovering = []grpc.ServerOption{
	grpc.ChainUnaryInterceptor(func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
		defer recoverTo(&err)
		return next(ctx, req)
	}),
	grpc.ChainStreamInterceptor(func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
		defer recoverTo(&err)
		return next(srv, s)
	}),
}

func recoverTo(err *error) {
	if p := recover(); p != nil {
		*err = status.Errorf(codes.Internal, "recovered outside: %v", p)
	}
}
