package idemgrpc_test

import (
	"context"
	"errors"
	"io"
	"slices"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// streamServer serves Payout without protection, and notes the keys.
func streamServer(t *testing.T, payout func(attempt int64, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error) (walletv1.WalletServiceClient, *[]string) {
	t.Helper()
	var attempts atomic.Int64
	var keys []string
	w := &wallet{payout: func(req *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if req.GetCount() != 3 {
			t.Errorf("request = %v, want count 3 each time", req)
		}
		keys = append(keys, metadata.ValueFromIncomingContext(s.Context(), "idempotency-key")...)
		return payout(attempts.Add(1), s)
	}}
	server := grpc.NewServer()
	walletv1.RegisterWalletServiceServer(server, w)
	conn := serve(t, server, grpc.WithStreamInterceptor(idemgrpc.MustStreamClientInterceptor(honoured, idemgrpc.WithRetryBackoff(time.Microsecond, time.Millisecond))))
	return walletv1.NewWalletServiceClient(conn), &keys
}

func drainPayout(t *testing.T, c walletv1.WalletServiceClient) (numbers []int32, err error) {
	t.Helper()
	s, err := c.Payout(t.Context(), &walletv1.PayoutRequest{Count: 3})
	if err != nil {
		return nil, err
	}
	for {
		r, err := s.Recv()
		if errors.Is(err, io.EOF) {
			return numbers, nil
		}
		if err != nil {
			return numbers, err
		}
		numbers = append(numbers, r.GetNumber())
	}
}

func TestStreamClientStartsOver(t *testing.T) {
	t.Parallel()
	c, keys := streamServer(t, func(attempt int64, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if attempt < 3 {
			return status.Error(codes.Unavailable, "not yet")
		}
		return sendNumbers(s, 3)
	})
	numbers, err := drainPayout(t, c)
	if err != nil || !slices.Equal(numbers, []int32{1, 2, 3}) {
		t.Errorf("Payout() = %v, %v, want 1, 2, 3", numbers, err)
	}
	if k := *keys; len(k) != 3 || k[0] != k[1] || k[1] != k[2] {
		t.Errorf("keys %q, want one for three attempts", k)
	}
}

// A caller may fill the request of its next call into the same message.
func TestStreamClientStartsOverWithTheRequestThatItSent(t *testing.T) {
	t.Parallel()
	changed := make(chan struct{})
	c, keys := streamServer(t, func(attempt int64, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if attempt == 1 {
			<-changed
			return status.Error(codes.Unavailable, "not yet")
		}
		return sendNumbers(s, 3)
	})
	req := &walletv1.PayoutRequest{Count: 3}
	s, err := c.Payout(t.Context(), req)
	if err != nil {
		t.Fatal(err)
	}
	req.Count = 4
	close(changed)
	if _, err := s.Recv(); err != nil || len(*keys) != 2 {
		t.Errorf("Recv() = %v after %d attempts, want an answer to the second", err, len(*keys))
	}
}

func TestStreamClientDoesNotStartOverInTheMiddle(t *testing.T) {
	t.Parallel()
	c, keys := streamServer(t, func(_ int64, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		if err := sendNumbers(s, 1); err != nil {
			return err
		}
		return status.Error(codes.Unavailable, "gone")
	})
	numbers, err := drainPayout(t, c)
	if status.Code(err) != codes.Unavailable || !slices.Equal(numbers, []int32{1}) || len(*keys) != 1 {
		t.Errorf("Payout() = %v, %v after %d attempts, want 1 and the error, at once", numbers, err, len(*keys))
	}
}

func TestStreamClientDoesNotRepeatWhatIsFinal(t *testing.T) {
	t.Parallel()
	c, keys := streamServer(t, func(int64, grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		return status.Error(codes.FailedPrecondition, "no")
	})
	if _, err := drainPayout(t, c); status.Code(err) != codes.FailedPrecondition || len(*keys) != 1 {
		t.Errorf("Payout() = %v after %d attempts, want FAILED_PRECONDITION at once", err, len(*keys))
	}
}

func TestStreamClientAfterTheHeader(t *testing.T) {
	t.Parallel()
	c, keys := streamServer(t, func(int64, grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		return status.Error(codes.Unavailable, "no")
	})
	s, err := c.Payout(t.Context(), &walletv1.PayoutRequest{Count: 3})
	if err != nil {
		t.Fatal(err)
	}
	_, _ = s.Header()
	if _, err := s.Recv(); status.Code(err) != codes.Unavailable || len(*keys) != 1 {
		t.Errorf("Recv() = %v after %d attempts, want UNAVAILABLE at once", err, len(*keys))
	}
	if s.Context() == nil || s.Trailer().Len() < 0 {
		t.Error("no context")
	}
}

func TestStreamsOfRequestsGetNoKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.dial = []grpc.DialOption{grpc.WithStreamInterceptor(idemgrpc.MustStreamClientInterceptor(honoured))}
	b.start()
	got, err := uploadTwo(b.withKeys(), b)
	if err != nil || got.GetCount() != 2 {
		t.Errorf("Upload() = %v, %v, want 2: a key would be refused", got, err)
	}
	b.wantNumbers(b.payout(b.withKeys(), 3), 3, false)
}

// A stream of requests that a handler has sent on may have had an effect, also
// where it was refused in the end.
func TestStreamsOfRequestsAreEffects(t *testing.T) {
	t.Parallel()
	uploads := 0
	server := grpc.NewServer(grpc.StreamInterceptor(func(any, grpc.ServerStream, *grpc.StreamServerInfo, grpc.StreamHandler) error {
		uploads++
		return status.Error(codes.ResourceExhausted, "later")
	}))
	walletv1.RegisterWalletServiceServer(server, walletv1.UnimplementedWalletServiceServer{})
	behind := setup(t)
	behind.client = walletv1.NewWalletServiceClient(serve(t, server, grpc.WithStreamInterceptor(idemgrpc.MustStreamClientInterceptor(honoured))))
	b := setup(t)
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		_, err := uploadTwo(ctx, behind)
		return nil, err
	}
	b.start()
	for range 2 {
		a := b.pay("k")
		b.wantDoubt(a.err, a.trailer, "k", 0)
	}
	if uploads != 1 {
		t.Errorf("%d uploads, want 1", uploads)
	}
}

// scriptedStream is a server stream at the client, without a network.
type scriptedStream struct {
	grpc.ClientStream
	send, closed, receive, header error
	sent                          []any
}

func (s *scriptedStream) SendMsg(m any) error  { s.sent = append(s.sent, m); return s.send }
func (s *scriptedStream) CloseSend() error     { return s.closed }
func (s *scriptedStream) RecvMsg(any) error    { return s.receive }
func (s *scriptedStream) Trailer() metadata.MD { return nil }

func (s *scriptedStream) Header() (metadata.MD, error) { return nil, s.header }

var (
	errBusy  = status.Error(codes.Unavailable, "busy")
	errFinal = status.Error(codes.NotFound, "none")
)

// A stream starts over after an error that may be gone the next time, wherever it comes from. Every
// other error reaches the caller.
func TestStreamClientByEachStep(t *testing.T) {
	t.Parallel()
	exchange := func(s grpc.ClientStream) error {
		if err := s.SendMsg("request"); err != nil {
			return err
		}
		if err := s.CloseSend(); err != nil {
			return err
		}
		return s.RecvMsg(nil)
	}
	for name, tt := range map[string]struct {
		attempts []any // errors of opening it, and streams; all later ones succeed
		call     func(grpc.ClientStream) error
		method   string
		opened   int
		want     error
	}{
		"opened at the second try":   {[]any{errBusy}, exchange, payoutMethod, 2, nil},
		"never opened":               {[]any{errFinal}, exchange, payoutMethod, 1, errFinal},
		"without a key":              {[]any{errBusy}, exchange, "/grpc.health.v1.Health/Watch", 1, errBusy},
		"without a key, at its end":  {[]any{&scriptedStream{receive: errBusy}}, exchange, "/grpc.health.v1.Health/Watch", 1, errBusy},
		"received at the second try": {[]any{&scriptedStream{receive: errBusy}}, exchange, payoutMethod, 2, nil},
		"opened again":               {[]any{&scriptedStream{receive: errBusy}, errBusy}, exchange, payoutMethod, 3, nil},
		"not opened again":           {[]any{&scriptedStream{receive: errBusy}, errFinal}, exchange, payoutMethod, 2, errFinal},
		"sent again":                 {[]any{&scriptedStream{receive: errBusy}, &scriptedStream{send: errBusy}}, exchange, payoutMethod, 3, nil},
		"not sent again":             {[]any{&scriptedStream{receive: errBusy}, &scriptedStream{send: errFinal}}, exchange, payoutMethod, 2, errFinal},
		"ended before it was sent":   {[]any{&scriptedStream{receive: errBusy}, &scriptedStream{send: io.EOF, receive: errFinal}}, exchange, payoutMethod, 2, errFinal},
		"not ended again":            {[]any{&scriptedStream{receive: errBusy}, &scriptedStream{closed: errFinal}}, exchange, payoutMethod, 2, errFinal},
		"not sent":                   {[]any{&scriptedStream{send: errFinal}}, exchange, payoutMethod, 1, errFinal},
		"not ended":                  {[]any{&scriptedStream{closed: errFinal}}, exchange, payoutMethod, 1, errFinal},
		"nothing was sent":           {[]any{&scriptedStream{receive: errBusy}}, func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, payoutMethod, 1, errBusy},
		"the header failed":          {[]any{&scriptedStream{header: errBusy}}, func(s grpc.ClientStream) error { _, err := s.Header(); return err }, payoutMethod, 1, errBusy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				opened := 0
				last := &scriptedStream{}
				open := func(context.Context, *grpc.StreamDesc, *grpc.ClientConn, string, ...grpc.CallOption) (grpc.ClientStream, error) {
					opened++
					if opened > len(tt.attempts) {
						return last, nil
					}
					if err, ok := tt.attempts[opened-1].(error); ok {
						return nil, err
					}
					return tt.attempts[opened-1].(grpc.ClientStream), nil
				}
				s, err := idemgrpc.MustStreamClientInterceptor(honoured)(t.Context(), &grpc.StreamDesc{ServerStreams: true}, nil, tt.method, open)
				if err == nil {
					err = tt.call(s)
				}
				if !errors.Is(err, tt.want) || opened != tt.opened {
					t.Errorf("call = %v after %d streams, want %v after %d", err, opened, tt.want, tt.opened)
				}
				if tt.want == nil && !slices.Equal(last.sent, []any{"request"}) {
					t.Errorf("the last stream was sent %v, want the request", last.sent)
				}
			})
		})
	}
}
