package idemgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"testing"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// grpcDoubts are the ways in which a call can end in doubt, and how its client has to end. No client
// takes another key, and none stops while asking again helps.
var grpcDoubts = map[string]struct {
	first   func(context.Context) error // what the first run returns, after the money has moved
	inDoubt func(outcome idem.Response) idem.InDoubt
	paid    bool // or the client ends with OUTCOME_UNKNOWN
	asks    int
	atMost  int
}{
	"UNAVAILABLE, and a person has to look":       {failing(codes.Unavailable), leave, false, 2, 2},
	"INTERNAL, and a person has to look":          {failing(codes.Internal), leave, false, 2, 2},
	"DEADLINE_EXCEEDED, and a person":             {failing(codes.DeadlineExceeded), leave, false, 2, 2},
	"DATA_LOSS, and a person":                     {failing(codes.DataLoss), leave, false, 2, 2},
	"UNKNOWN, and a person":                       {failing(codes.Unknown), leave, false, 2, 2},
	"ABORTED of the handler":                      {failing(codes.Aborted), leave, false, 2, 2},
	"INTERNAL, and a resolver finds out":          {failing(codes.Internal), resolved(1), true, 1, 1},
	"INTERNAL, and a resolver finds out late":     {failing(codes.Internal), resolved(3), true, 3, 4},
	"INTERNAL, and the method runs again":         {failing(codes.Internal), again, true, 2, 2},
	"CANCELLED in the middle":                     {failing(codes.Canceled), resolved(2), true, 2, 3},
	"NOT_FOUND after the time is over":            {late(codes.NotFound), leave, false, 1, 1},
	"NOT_FOUND after the time, and a resolver":    {late(codes.NotFound), resolved(2), true, 2, 3},
	"NOT_FOUND after the time, and it runs again": {late(codes.NotFound), again, true, 2, 2},
	"PERMISSION_DENIED after the gate":            {afterTheGate, leave, false, 1, 1},
	"PERMISSION_DENIED after the gate, resolved":  {afterTheGate, resolved(2), true, 2, 3},
	"a refusal of another service":                {relayedRefusal, leave, false, 1, 1},
	"a refusal of another service, resolved":      {relayedRefusal, resolved(2), true, 2, 3},
	"a panic":                                     {func(context.Context) error { panic("boom") }, resolved(2), true, 2, 3},
}

func TestClientsNeitherGiveUpNorTakeAnotherKeyInDoubt(t *testing.T) {
	t.Parallel()
	for name, tt := range grpcDoubts {
		for _, stream := range []bool{false, true} {
			t.Run(fmt.Sprintf("%s, stream %t", name, stream), func(t *testing.T) {
				t.Parallel()
				var message proto.Message = &walletv1.TransferResponse{Id: "t1"}
				if stream {
					message = &walletv1.PayoutResponse{Number: 1}
				}
				outcome, err := idemgrpc.Outcome(nil, message)
				if err != nil {
					t.Fatal(err)
				}
				b := setup(t)
				b.policy.InDoubt, b.policy.HandlerTimeout = tt.inDoubt(outcome), 50*time.Millisecond
				b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
					if b.wallet.runs.Load() == 1 {
						return nil, tt.first(ctx)
					}
					return &walletv1.TransferResponse{Id: "t1"}, nil
				}
				b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
					if b.wallet.runs.Load() == 1 {
						return tt.first(s.Context())
					}
					return sendNumbers(s, 1)
				}
				var mu sync.Mutex
				asked := map[string]int{}
				ask := func(ctx context.Context) {
					mu.Lock()
					defer mu.Unlock()
					for _, key := range metadata.ValueFromIncomingContext(ctx, "idempotency-key") {
						asked[key]++
					}
				}
				b.before = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (_ any, err error) {
					ask(ctx)
					defer recovered(&err)
					return next(ctx, req)
				}}
				b.beforeStream = []grpc.StreamServerInterceptor{func(srv any, s grpc.ServerStream, _ *grpc.StreamServerInfo, next grpc.StreamHandler) (err error) {
					ask(s.Context())
					defer recovered(&err)
					return next(srv, s)
				}}
				quick := idemgrpc.WithRetryBackoff(time.Microsecond, time.Millisecond)
				b.dial = []grpc.DialOption{
					grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(honoured, quick)),
					grpc.WithStreamInterceptor(idemgrpc.MustStreamClientInterceptor(honoured, quick)),
				}
				b.start()
				if stream {
					err = drain(b)
				} else {
					_, err = b.client.Transfer(t.Context(), usual())
				}
				if code, _ := idemgrpc.CodeOf(err); tt.paid && err != nil || !tt.paid && code != idem.CodeOutcomeUnknown {
					t.Errorf("the call ended with %v, want it paid: %v", err, tt.paid)
				}
				mu.Lock()
				defer mu.Unlock()
				n := 0
				for _, times := range asked {
					n += times
				}
				if len(asked) != 1 || n < tt.asks || n > tt.atMost {
					t.Errorf("it asked with the keys %v, want %d to %d times with one", asked, tt.asks, tt.atMost)
				}
			})
		}
	}
}

// drain receives a payout to its end. A stream without a message is no payout.
func drain(b *bundle) error {
	s, err := b.client.Payout(b.Context(), &walletv1.PayoutRequest{Count: 1})
	if err != nil {
		return err
	}
	for n := 0; ; n++ {
		if _, err := s.Recv(); errors.Is(err, io.EOF) && n == 1 {
			return nil
		} else if err != nil {
			return err
		}
	}
}

func recovered(err *error) {
	if p := recover(); p != nil {
		*err = status.Errorf(codes.Internal, "recovered: %v", p)
	}
}

func leave(idem.Response) idem.InDoubt { return idem.LeaveUnknown() }
func again(idem.Response) idem.InDoubt { return idem.RunAgain() }

// resolved asks a resolver that knows the outcome from its nth call on.
func resolved(nth int) func(idem.Response) idem.InDoubt {
	return func(outcome idem.Response) idem.InDoubt {
		var mu sync.Mutex
		calls := 0
		return idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			mu.Lock()
			defer mu.Unlock()
			if calls++; calls < nth {
				return idem.StillUnknown(), nil
			}
			return idem.Applied(outcome), nil
		})
	}
}

func failing(code codes.Code) func(context.Context) error {
	return func(context.Context) error { return status.Error(code, "no answer from the bank") }
}

// late answers as methods do that take the end of their time for a refusal of the bank.
func late(code codes.Code) func(context.Context) error {
	return func(ctx context.Context) error {
		<-ctx.Done()
		return failing(code)(ctx)
	}
}

func afterTheGate(ctx context.Context) error {
	if _, err := idem.DownstreamKey(ctx, "bank"); err != nil {
		return err
	}
	return status.Error(codes.PermissionDenied, "of the bank")
}

// relayedRefusal hands on the refusal of a service that the method has called.
func relayedRefusal(context.Context) error {
	return withDetails(codes.InvalidArgument, &errdetails.ErrorInfo{Domain: "idemkeeper", Reason: "KEY_REUSED"})
}
