package idemgrpc_test

import (
	"cmp"
	"context"
	"errors"
	"io"
	"slices"
	"testing"
	"testing/synctest"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

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
		b.wantRefusal(b.pay("k").err, idem.CodeOutcomeUnknown)
	}
	if uploads != 1 {
		t.Errorf("%d uploads, want 1", uploads)
	}
}

// scriptedStream is a server stream at the client, without a network.
type scriptedStream struct {
	grpc.ClientStream
	send, closed, receive, header error
	messages                      int // that are received before the error
	sent                          []any
}

func (s *scriptedStream) SendMsg(m any) error {
	s.sent = append(s.sent, proto.Clone(m.(proto.Message)))
	return s.send
}

func (s *scriptedStream) RecvMsg(any) error {
	if s.messages--; s.messages >= 0 {
		return nil
	}
	return s.receive
}

func (s *scriptedStream) CloseSend() error     { return s.closed }
func (s *scriptedStream) Trailer() metadata.MD { return nil }

func (s *scriptedStream) Header() (metadata.MD, error) { return nil, s.header }

var (
	errBusy  = status.Error(codes.Unavailable, "busy")
	errFinal = status.Error(codes.NotFound, "none")
)

// A stream starts over after an error that may be gone the next time, wherever it comes from, with the same key and
// the request that was sent. A caller may fill the request of its next call into the same message. Every other error
// reaches the caller, and so does each one after the caller has got something of the answer.
func TestStreamClientByEachStep(t *testing.T) {
	t.Parallel()
	start := func(s grpc.ClientStream) error {
		req := &walletv1.PayoutRequest{Count: 3}
		err := s.SendMsg(req)
		if req.Count = 4; err != nil {
			return err
		}
		return s.CloseSend()
	}
	exchange := func(s grpc.ClientStream) error { return cmp.Or(start(s), s.RecvMsg(nil)) }
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
		"received a final error":     {[]any{&scriptedStream{receive: errFinal}}, exchange, payoutMethod, 1, errFinal},
		"received a message before":  {[]any{&scriptedStream{receive: errBusy, messages: 1}}, func(s grpc.ClientStream) error { return cmp.Or(exchange(s), s.RecvMsg(nil)) }, payoutMethod, 1, errBusy},
		"received the header before": {[]any{&scriptedStream{receive: errBusy}}, func(s grpc.ClientStream) error {
			_, err := s.Header()
			return cmp.Or(start(s), err, s.RecvMsg(nil))
		}, payoutMethod, 1, errBusy},
		"nothing was sent":  {[]any{&scriptedStream{receive: errBusy}}, func(s grpc.ClientStream) error { return s.RecvMsg(nil) }, payoutMethod, 1, errBusy},
		"the header failed": {[]any{&scriptedStream{header: errBusy}}, func(s grpc.ClientStream) error { _, err := s.Header(); return err }, payoutMethod, 1, errBusy},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			synctest.Test(t, func(t *testing.T) {
				opened := 0
				var keys []string
				last := &scriptedStream{}
				open := func(ctx context.Context, _ *grpc.StreamDesc, _ *grpc.ClientConn, _ string, _ ...grpc.CallOption) (grpc.ClientStream, error) {
					opened++
					md, _ := metadata.FromOutgoingContext(ctx)
					keys = append(keys, md.Get("idempotency-key")...)
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
				if tt.want == nil && (len(last.sent) != 1 || last.sent[0].(*walletv1.PayoutRequest).GetCount() != 3) {
					t.Errorf("the last stream was sent %v, want the request", last.sent)
				}
				if tt.method == payoutMethod && (len(keys) != opened || len(slices.Compact(keys)) != 1) {
					t.Errorf("keys %q of %d streams, want one", keys, opened)
				}
			})
		})
	}
}
