package idemgrpc_test

import (
	"bytes"
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// scriptedServerStream is a server stream at the server, without a network.
type scriptedServerStream struct {
	grpc.ServerStream
	ctx                   context.Context
	receive, header, send error
	blocks                chan struct{} // nil: messages are sent at once
	sent                  int
}

func (s *scriptedServerStream) Context() context.Context     { return s.ctx }
func (s *scriptedServerStream) RecvMsg(any) error            { return s.receive }
func (s *scriptedServerStream) SendHeader(metadata.MD) error { return s.header }

func (s *scriptedServerStream) SendMsg(any) error {
	if s.blocks != nil {
		<-s.blocks
	}
	s.sent++
	return s.send
}

// interceptors are those of a bundle for all methods that can have a policy, without a server.
func (b *bundle) interceptors(cfg ...idemgrpc.Config) *idemgrpc.Interceptors {
	b.Helper()
	x, err := idemgrpc.New(b.engine, []idem.Policy{b.policy}, cfg...)
	if err != nil {
		b.Fatalf("New() = %v", err)
	}
	return x
}

// incoming is the context of a call with a key at the server.
func incoming(ctx context.Context, key string) context.Context {
	return metadata.NewIncomingContext(ctx, metadata.Pairs("idempotency-key", key))
}

var payoutInfo = &grpc.StreamServerInfo{FullMethod: payoutMethod, IsServerStream: true}

func TestServerStreamReportsItsConnection(t *testing.T) {
	t.Parallel()
	errTooLarge := status.Error(codes.ResourceExhausted, "too large")
	for name, tt := range map[string]struct {
		gone    bool // the client has left
		stream  scriptedServerStream
		act     func(s grpc.ServerStream) error
		handler error // what act returns
	}{
		"a message":             {false, scriptedServerStream{}, func(s grpc.ServerStream) error { return s.SendMsg(&walletv1.PayoutResponse{}) }, nil},
		"a message too large":   {false, scriptedServerStream{send: errTooLarge}, func(s grpc.ServerStream) error { return s.SendMsg(&walletv1.PayoutResponse{}) }, errTooLarge},
		"a client that is gone": {true, scriptedServerStream{send: errTooLarge}, func(s grpc.ServerStream) error { return s.SendMsg(&walletv1.PayoutResponse{}) }, nil},
		"the header, refused":   {false, scriptedServerStream{header: errTooLarge}, func(s grpc.ServerStream) error { return s.SendHeader(nil) }, errTooLarge},
		"the header, gone":      {true, scriptedServerStream{header: errTooLarge}, func(s grpc.ServerStream) error { return s.SendHeader(nil) }, nil},
		"a request for no type": {false, scriptedServerStream{}, func(s grpc.ServerStream) error { return s.RecvMsg("text") }, status.Error(codes.Internal, "")},
	} {
		b := setup(t)
		ctx, leave := context.WithCancel(t.Context())
		defer leave()
		tt.stream.ctx = incoming(ctx, "k1")
		got := errors.New("the handler did not run")
		_ = b.interceptors().Stream()(nil, &tt.stream, payoutInfo, func(_ any, s grpc.ServerStream) error {
			if tt.gone {
				leave()
			}
			got = tt.act(s)
			return got
		})
		if status.Code(got) != status.Code(tt.handler) {
			t.Errorf("%s: the handler got %v, want %v", name, got, tt.handler)
		}
	}
}

// Errors of the stream around a handler are those of the call.
func TestServerStreamPassesErrorsOn(t *testing.T) {
	t.Parallel()
	want := status.Error(codes.Canceled, "gone")
	b := setup(t)
	fails := func(any, grpc.ServerStream) error { return want }
	sends := func(_ any, s grpc.ServerStream) error { return s.SendMsg(&walletv1.PayoutResponse{Number: 1}) }
	call := b.interceptors(idemgrpc.Config{Exempt: []string{"/exempt.Service/*"}}).Stream()
	s := &scriptedServerStream{ctx: incoming(t.Context(), "k1"), receive: want}
	if err := call(nil, s, payoutInfo, sends); !errors.Is(err, want) {
		t.Errorf("call without a request = %v, want %v", err, want)
	}
	b.wantNothing()
	if err := call(nil, &scriptedServerStream{ctx: s.ctx}, payoutInfo, sends); err != nil {
		t.Errorf("call = %v", err)
	}
	s = &scriptedServerStream{ctx: s.ctx, send: want}
	if err := call(nil, s, payoutInfo, sends); !errors.Is(err, want) || s.sent != 1 {
		t.Errorf("replay = %v after %d messages, want %v after one", err, s.sent, want)
	}
	if err := call(nil, s, &grpc.StreamServerInfo{FullMethod: "/exempt.Service/Watch"}, fails); !errors.Is(err, want) {
		t.Errorf("exempt call = %v, want %v", err, want)
	}
}

// A stream that no code describes cannot be protected. It runs as it is if the client streams, and
// is refused otherwise.
func TestUndescribedStreams(t *testing.T) {
	t.Parallel()
	b := setup(t)
	call, ran := b.interceptors().Stream(), false
	handler := func(any, grpc.ServerStream) error { ran = true; return nil }
	s := &scriptedServerStream{ctx: incoming(t.Context(), "k1")}
	err := call(nil, s, &grpc.StreamServerInfo{FullMethod: "/legacy.Service/Watch", IsServerStream: true}, handler)
	if code, _ := idemgrpc.CodeOf(err); code != idem.CodeInternal || ran {
		t.Errorf("server stream = %v, ran %v, want it refused as internal", err, ran)
	}
	s.ctx = t.Context()
	if err := call(nil, s, &grpc.StreamServerInfo{FullMethod: "/legacy.Service/Chat", IsServerStream: true, IsClientStream: true}, handler); err != nil || !ran {
		t.Errorf("stream of requests = %v, ran %v, want it to run", err, ran)
	}
}

// A message of a finished handler does not reach the client.
func TestSendAfterTheEndOfTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	s := &scriptedServerStream{ctx: incoming(t.Context(), "k1")}
	var left grpc.ServerStream
	if err := b.interceptors().Stream()(nil, s, payoutInfo, func(_ any, s grpc.ServerStream) error { left = s; return nil }); err != nil {
		t.Fatal(err)
	}
	if err := left.SendMsg(&walletv1.PayoutResponse{}); !errors.Is(err, idem.ErrExecutionEnded) || s.sent != 0 {
		t.Errorf("SendMsg() = %v, %d messages sent, want %v and none", err, s.sent, idem.ErrExecutionEnded)
	}
}

// Requests that have no fingerprint are refused before anything is touched.
func TestRequestsWithoutAFingerprint(t *testing.T) {
	t.Parallel()
	malformed := &walletv1.TransferRequest{}
	malformed.ProtoReflect().SetUnknown([]byte{0x0a, 0xff})
	for want, req := range map[idem.Code]any{idem.CodeInternal: "text", idem.CodeBodyInvalid: malformed} {
		b := setup(t)
		_, err := b.interceptors().Unary()(incoming(t.Context(), "k1"), req, &grpc.UnaryServerInfo{FullMethod: transferMethod}, func(context.Context, any) (any, error) {
			b.Errorf("%s: the handler ran", want)
			return nil, nil
		})
		if code, _ := idemgrpc.CodeOf(err); code != want {
			t.Errorf("request %v: %v, want %s", req, err, want)
		}
		b.wantNothing()
	}
}

// Messages as long as their limit are taken and kept.
func TestMessagesAsLongAsTheLimit(t *testing.T) {
	t.Parallel()
	outcome := must(idemgrpc.Outcome(nil, &walletv1.TransferResponse{Id: "t1", Amount: 1250}))
	b := setup(t)
	b.policy.MaxRequestBody, b.policy.MaxResponseBody = int64(proto.Size(usual())), int64(len(outcome.Body))
	b.start()
	b.wantPaid(b.pay("k1"), false)
	b.wantPaid(b.pay("k1"), true)
}

// Without generated code, the field with the key is looked for in each request, and a stored message
// of an unknown type is sent as it is stored.
func TestUndescribedMessages(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
		return idem.Applied(outcome(t, &idemkeeperv1.Outcome{Messages: []*anypb.Any{{TypeUrl: "type.googleapis.com/legacy.v0.Paid", Value: []byte{8, 1}}}})), nil
	})
	call := b.interceptors(idemgrpc.Config{KeyField: "request_id"}).Unary()
	runs := 0
	var answer any
	do := func(ctx context.Context, req any, failure error) (err error) {
		answer, err = call(ctx, req, &grpc.UnaryServerInfo{FullMethod: "/legacy.Service/Do"}, func(context.Context, any) (any, error) {
			runs++
			return new(emptypb.Empty), failure
		})
		return err
	}
	for range 2 {
		if err := do(t.Context(), &walletv1.TransferRequest{RequestId: "k1"}, nil); err != nil || runs != 1 {
			t.Errorf("call with the key in a field = %v after %d runs, want one run", err, runs)
		}
	}
	if err := do(incoming(t.Context(), "k2"), new(emptypb.Empty), nil); err != nil || runs != 2 {
		t.Errorf("call without such a field = %v after %d runs, want two runs", err, runs)
	}
	err := do(incoming(t.Context(), "k3"), new(emptypb.Empty), status.Error(codes.Unavailable, "connection lost"))
	if err != nil {
		t.Fatalf("replay of an unknown message = %v, want the message", err)
	}
	sent, err := encoding.GetCodecV2("proto").Marshal(answer)
	if err != nil || !bytes.Equal(sent.Materialize(), []byte{8, 1}) {
		t.Errorf("replay of an unknown message is sent as %x, %v, want 0801", sent.Materialize(), err)
	}
}

// A handler whose messages are not kept learns that its client does not read, and ends.
func TestStreamPastTheLimitWhoseClientDoesNotRead(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		b := setup(t)
		b.policy.HandlerTimeout, b.policy.MaxResponseBody = time.Second, 1
		s := &scriptedServerStream{ctx: incoming(t.Context(), "k1"), blocks: make(chan struct{})}
		defer close(s.blocks)
		for range 2 {
			sent := 0
			err := b.interceptors().Stream()(nil, s, payoutInfo, func(_ any, r grpc.ServerStream) (err error) {
				for ; err == nil && sent < 10; sent++ {
					err = r.SendMsg(&walletv1.PayoutResponse{Number: 1})
				}
				if again := r.SendMsg(&walletv1.PayoutResponse{Number: 1}); status.Code(again) != codes.DeadlineExceeded {
					t.Errorf("SendMsg() after that = %v, want %v", again, codes.DeadlineExceeded)
				}
				return err
			})
			if code, _ := idemgrpc.CodeOf(err); sent > 1 || code == "" {
				t.Errorf("call = %v after %d messages, want a refusal after one", err, sent)
			}
		}
	})
}
