package idemgrpc_test

import (
	"context"
	"errors"
	"testing"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// A refusal by the interceptors is an event of the route.
func TestRefusalsAreReported(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"", transferMethod} {
		b := setup(t)
		b.policy.Name = name
		b.policies = []idem.Policy{b.policy}
		b.start()
		b.pay()
		b.mu.Lock()
		if len(b.events) != 1 || b.events[0].Type != telemetry.EventRefused || b.events[0].Route != transferMethod {
			t.Errorf("events = %v, want one %v of %s", b.events, telemetry.EventRefused, transferMethod)
		}
		b.mu.Unlock()
	}
}

func TestCodeOfOtherErrors(t *testing.T) {
	t.Parallel()
	for _, err := range []error{nil, errors.New("x"), status.Error(codes.Aborted, "x"), withDetails(codes.Aborted, &errdetails.ErrorInfo{Domain: "bank.example", Reason: "IN_PROGRESS"})} {
		if code, ok := idemgrpc.CodeOf(err); ok || code != "" {
			t.Errorf("CodeOf(%v) = %q, %v, want none", err, code, ok)
		}
	}
}

func TestResultGone(t *testing.T) {
	t.Parallel()
	t.Run("of a later build, whose fingerprint this one cannot make", func(t *testing.T) {
		t.Parallel()
		b := setup(t).start()
		begin := driver.BeginRequest{Fence: driver.Fence{Domain: "d", Token: 1}, Nonce: driver.NewNonce(), Fingerprint: driver.Fingerprint{Version: 255, Sum: [32]byte{1}}}
		if _, err := b.records.Begin(t.Context(), idem.NewKeyID("merchant", "k1"), begin); err != nil {
			t.Fatal(err)
		}
		b.wantRefusal(b.pay("k1").err, idem.CodeUnavailable)
		b.wantRuns(0)
	})
	t.Run("over the limit", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policy.MaxResponseBody = 8
		b.start()
		b.wantPaid(b.pay("k1"), false)
		b.wantState("k1", driver.StateCompleted)
		b.wantRefusal(b.pay("k1").err, idem.CodeResultUnavailable)
		b.wantRuns(1)
	})
	t.Run("not one of gRPC", func(t *testing.T) {
		t.Parallel()
		for name, r := range map[string]idem.Response{
			"HTTP":              {Status: 201, Body: []byte(`{"id":"p1"}`)},
			"nothing":           {},
			"two messages":      must(idemgrpc.Outcome(nil, &walletv1.TransferResponse{}, &walletv1.TransferResponse{})),
			"no message":        must(idemgrpc.Outcome(nil)),
			"message and error": must(idemgrpc.Outcome(status.Error(codes.NotFound, "x"), &walletv1.TransferResponse{})),
		} {
			b := setup(t)
			b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
				b.operator(ctx, driver.Settlement{State: driver.StateCompleted, Response: (*driver.Response)(&r)})
				return &walletv1.TransferResponse{}, nil
			}
			b.start()
			for range 2 {
				a := b.pay("k1")
				if got, _ := idemgrpc.CodeOf(a.err); got != idem.CodeResultUnavailable {
					t.Errorf("%s: Transfer() = %v, %v, want %s", name, a.response, a.err, idem.CodeResultUnavailable)
				}
			}
			b.wantRuns(1)
		}
	})
	t.Run("not one of a stream", func(t *testing.T) {
		t.Parallel()
		unknown := &idemkeeperv1.Outcome{}
		unknown.ProtoReflect().SetUnknown([]byte{0x78, 1})
		whole := must(idemgrpc.Outcome(nil, &walletv1.PayoutResponse{Number: 1}))
		for name, r := range map[string]idem.Response{
			"no message of protobuf":  {Body: []byte{0xff}},
			"text of a success":       outcome(t, &idemkeeperv1.Outcome{Text: "x"}),
			"details of a success":    outcome(t, &idemkeeperv1.Outcome{Details: []*anypb.Any{{}}}),
			"a code below zero":       outcome(t, &idemkeeperv1.Outcome{Code: -1}),
			"a field of a later form": outcome(t, unknown),
			"another status":          {Status: int(codes.NotFound), Body: outcome(t, &idemkeeperv1.Outcome{Code: int32(codes.Aborted)}).Body},
			"omitted":                 {Body: whole.Body, Omitted: true},
		} {
			b := setup(t)
			b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
				b.operator(s.Context(), driver.Settlement{State: driver.StateCompleted, Response: (*driver.Response)(&r)})
				return nil
			}
			b.start()
			for range 2 {
				got := b.payout(b.withKeys("k1"), 0)
				if code, _ := idemgrpc.CodeOf(got.err); code != idem.CodeResultUnavailable {
					t.Errorf("%s: Payout() = %v, %v, want %s", name, got.numbers, got.err, idem.CodeResultUnavailable)
				}
			}
			b.wantRuns(1)
		}
	})
}

// outcome is a stored response as another build may have made it.
func outcome(t *testing.T, o *idemkeeperv1.Outcome) idem.Response {
	t.Helper()
	body, err := proto.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return idem.Response{Status: int(o.GetCode()), Body: body}
}

func TestOwnershipLostShowsNothingOfTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		x, _ := idem.FromContext(ctx)
		b.lock.Revoke(x.KeyID)
		b.operator(ctx, driver.Settlement{State: driver.StateReleased})
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-handler", "1"))
		_ = grpc.SetTrailer(ctx, metadata.Pairs("x-handler", "1"))
		return &walletv1.TransferResponse{Id: "secret"}, nil
	}
	b.start()
	a := b.pay("k1")
	b.wantRefusal(a.err, idem.CodeOwnershipLost)
	if len(a.header.Get("x-handler"))+len(a.trailer.Get("x-handler")) > 0 {
		t.Errorf("header %v, trailer %v, want nothing of the handler", a.header, a.trailer)
	}
	b.wantRuns(1)
}

func TestUnknownMethods(t *testing.T) {
	t.Parallel()
	t.Run("pass by default, key or not", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = b.policyOf(payoutMethod)
		b.start()
		b.wantPaid(b.pay("k1"), false)
		b.wantPaid(b.pay("k1"), false)
		b.wantPaid(b.pay(), false)
		b.wantRuns(3)
	})
	t.Run("refused where asked", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = b.policyOf(payoutMethod)
		b.cfg = idemgrpc.Config{RefuseUnknown: true}
		b.start()
		b.wantRefusal(b.pay("k1").err, idem.CodeInternal)
		b.wantNothing()
		_, err := b.client.GetBalance(b.withKeys("k1"), &walletv1.GetBalanceRequest{})
		b.wantCode(err, codes.OK) // it has no side effects
		_, err = uploadTwo(b.withKeys(), b)
		if code, _ := idemgrpc.CodeOf(err); code != idem.CodeInternal {
			t.Errorf("Upload() = %v, want a refusal as internal", err)
		}
		b.wantRuns(1)
	})
	t.Run("streams refused where asked", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = b.policyOf(transferMethod)
		b.cfg = idemgrpc.Config{RefuseUnknown: true}
		b.start()
		got := b.payout(b.withKeys("k1"), 3)
		b.wantRefusal(got.err, idem.CodeInternal)
		b.wantNothing()
	})
	t.Run("a policy for all others is none for streams of requests", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = []idem.Policy{b.policy}
		b.cfg = idemgrpc.Config{RefuseUnknown: true}
		b.start()
		_, err := uploadTwo(b.withKeys(), b)
		if code, _ := idemgrpc.CodeOf(err); code != idem.CodeInternal {
			t.Errorf("Upload() = %v, want a refusal as internal", err)
		}
		b.wantNothing()
	})
	t.Run("a method without side effects can have a policy", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = b.policyOf(balanceMethod)
		b.start()
		_, err := b.client.GetBalance(b.withKeys(), &walletv1.GetBalanceRequest{})
		if code, _ := idemgrpc.CodeOf(err); code != idem.CodeKeyMissing {
			t.Errorf("GetBalance() without a key = %v, want %s", err, idem.CodeKeyMissing)
		}
		b.wantPaid(b.pay(), false)
	})
	t.Run("a policy for all others covers what can be covered", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = []idem.Policy{b.policy}
		b.start()
		b.wantPaid(b.pay("k1"), false)
		b.wantPaid(b.pay("k1"), true)
		b.wantRefusal(b.pay().err, idem.CodeKeyMissing)
		_, err := b.client.GetBalance(b.withKeys(), &walletv1.GetBalanceRequest{})
		b.wantCode(err, codes.OK)
		got, err := uploadTwo(b.withKeys(), b)
		if err != nil || got.GetCount() != 2 {
			t.Errorf("Upload() = %v, %v, want 2", got, err)
		}
	})
	t.Run("exempt ones pass", func(t *testing.T) {
		t.Parallel()
		b := setup(t)
		b.policies = []idem.Policy{b.policy}
		b.cfg = idemgrpc.Config{Exempt: []string{"/wallet.v1.WalletService/*"}}
		b.start()
		b.wantPaid(b.pay(), false)
		got, err := uploadTwo(b.withKeys("k1"), b)
		if err != nil || got.GetCount() != 2 {
			t.Errorf("Upload() = %v, %v, want 2", got, err)
		}
	})
}

func must(r idem.Response, err error) idem.Response {
	if err != nil {
		panic(err)
	}
	return r
}
