package idemgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"

	spb "google.golang.org/genproto/googleapis/rpc/status"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	idemkeeperv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/proto/idemkeeper/v1"
)

// What a method answers is a status, and one that says nothing of the outcome leaves it in doubt.
func TestAnswersThatAreNoStatus(t *testing.T) {
	t.Parallel()
	for name, tt := range map[string]struct {
		response *walletv1.TransferResponse
		err      error
		want     codes.Code
	}{
		"plain":                              {nil, errors.New("plain"), codes.Unknown},
		"a deadline":                         {nil, context.DeadlineExceeded, codes.DeadlineExceeded},
		"cancelled":                          {nil, fmt.Errorf("wrapped: %w", context.Canceled), codes.Canceled},
		"a status in an error":               {nil, fmt.Errorf("wrapped: %w", status.Error(codes.NotFound, "n")), codes.NotFound},
		"a text that is not UTF-8":           {nil, status.Error(codes.NotFound, "not \xff UTF-8"), codes.NotFound},
		"an error that calls itself success": {nil, successful{errors.New("x")}, codes.Unknown},
		"a message that cannot be sent":      {&walletv1.TransferResponse{Id: "\xff"}, nil, codes.Internal},
	} {
		b := setup(t)
		b.wallet.transfer = answers(tt.response, tt.err)
		b.start()
		live, again := b.pay("k1"), b.pay("k1")
		if status.Code(live.err) != tt.want {
			t.Errorf("%s: Transfer() = %v, want %v", name, live.err, tt.want)
		}
		if tt.want != codes.NotFound {
			b.wantRefusal(again.err, idem.CodeOutcomeUnknown)
			b.wantState("k1", driver.StateUnknown)
		} else if !proto.Equal(status.Convert(live.err).Proto(), status.Convert(again.err).Proto()) || !again.replayed() {
			t.Errorf("%s: replay = %v (replayed %v), want %v", name, again.err, again.replayed(), live.err)
		}
	}
}

// What cannot be stored is an error, and the answer to a repeat is not made up.
func TestOutcomesThatCannotBeStored(t *testing.T) {
	t.Parallel()
	bad := status.ErrorProto(&spb.Status{Code: int32(codes.NotFound), Details: []*anypb.Any{{TypeUrl: "\xff"}}})
	for name, err := range map[string]error{
		"invalid UTF-8": second(idemgrpc.Outcome(nil, &walletv1.TransferResponse{Id: "\xff"})),
		"no message":    second(idemgrpc.Outcome(nil, nil)),
		"bad details":   second(idemgrpc.Outcome(bad)),
	} {
		if err == nil {
			t.Errorf("Outcome() with %s = nil, want an error", name)
		}
	}
	b := setup(t)
	b.wallet.transfer = answers(nil, bad)
	b.start()
	b.pay("k1")
	b.wantRefusal(b.pay("k1").err, idem.CodeResultUnavailable)
	b.wantRuns(1)
}

func second(_ idem.Response, err error) error { return err }

// successful is an error that calls itself a success.
type successful struct{ error }

func (successful) GRPCStatus() *status.Status { return status.New(codes.OK, "") }

// A resolver names metadata as it likes. What is not on the list, or cannot be sent, is left out.
func TestMetadataOfAResolver(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
		r, err := idemgrpc.Outcome(nil, &walletv1.TransferResponse{Id: "t1", Amount: 1250})
		r.Header = map[string][]string{"X-Reason": {" fine~", "a\x1fb", "a\x7fb"}, "X-Sum-BIN": {"\x00\xff"}, "set-cookie": {"s=1"}}
		return idem.Applied(r), err
	})
	b.policies = b.policyOf(transferMethod)
	b.cfg = idemgrpc.Config{Replay: []string{"x-reason", "x-sum-bin"}}
	b.wallet.transfer = answers(nil, status.Error(codes.Unavailable, "connection lost"))
	b.start()
	a := b.pay("k1")
	b.wantPaid(a, true)
	if h := a.header; !slices.Equal(h.Get("x-reason"), []string{" fine~"}) || !slices.Equal(h.Get("x-sum-bin"), []string{"\x00\xff"}) || h.Get("set-cookie") != nil {
		t.Errorf("header = %v, want the reason that can be sent, and the sum", h)
	}
}

func TestKeyField(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policies = b.policyOf(transferMethod)
	b.cfg = idemgrpc.Config{KeyField: "request_id"}
	b.start()
	with := func(id string) *walletv1.TransferRequest {
		return &walletv1.TransferRequest{RequestId: id, To: "bob", Amount: 1250}
	}
	b.wantPaid(b.send(b.withKeys(), with("k1")), false)
	b.wantPaid(b.send(b.withKeys(), with("k1")), true)
	b.wantPaid(b.send(b.withKeys("k1"), with("")), true) // the same key and request, by the other way
	b.wantPaid(b.send(b.withKeys("k1"), with(`"k1"`)), true)
	b.wantRuns(1)
	for _, tt := range []struct {
		ctx  context.Context
		id   string
		want idem.Code
	}{
		{b.withKeys(), "", idem.CodeKeyMissing},
		{b.withKeys(), "k 1", idem.CodeKeyInvalid},
		{b.withKeys("k2"), "k1", idem.CodeKeyInvalid},
		{b.withKeys("k1", "k1"), "k1", idem.CodeKeyInvalid},
	} {
		a := b.send(tt.ctx, with(tt.id))
		b.wantRefusal(a.err, tt.want)
	}
	a := b.send(b.withKeys(), &walletv1.TransferRequest{RequestId: "k1", To: "bob", Amount: 1})
	b.wantRefusal(a.err, idem.CodeKeyReused)
	b.wantRuns(1)
}

func TestKeyFieldOfNoMethodIsData(t *testing.T) {
	t.Parallel()
	b := setup(t).start() // reads the metadata only
	req := usual()
	req.RequestId = "a"
	b.wantPaid(b.send(b.withKeys("k1"), req), false)
	b.wantRefusal(b.pay("k1").err, idem.CodeKeyReused)
}

func TestAnotherMetadataKey(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policies = b.policyOf(transferMethod)
	b.cfg = idemgrpc.Config{MetadataKey: "x-request-id"}
	b.start()
	ctx := metadata.AppendToOutgoingContext(b.withKeys(), "X-Request-Id", "k1")
	b.wantPaid(b.send(ctx, usual()), false)
	b.wantPaid(b.send(ctx, usual()), true)
	b.wantRefusal(b.pay("k1").err, idem.CodeKeyMissing)
}

func TestScopeComesFromTheContext(t *testing.T) {
	t.Parallel()
	type principal struct{}
	b := setup(t)
	b.policy.Scope = func(ctx context.Context) (string, error) { return ctx.Value(principal{}).(string), nil }
	b.before = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		who := metadata.ValueFromIncomingContext(ctx, "authorization")[0]
		_ = grpc.SetHeader(ctx, metadata.Pairs("x-outside", "1"))
		return next(context.WithValue(ctx, principal{}, who), req)
	}}
	b.start()
	as := func(who string) answer {
		return b.send(metadata.AppendToOutgoingContext(b.withKeys("k1"), "authorization", who), usual())
	}
	b.wantPaid(as("alice"), false)
	b.wantPaid(as("bob"), false)
	again := as("alice")
	b.wantPaid(again, true)
	if again.header.Get("x-outside") == nil {
		t.Error("what is set outside is missing from a replay")
	}
	b.wantRuns(2)
}

// Another build has stored a message under a name that this one does not know. It is read as the
// method's answer, and refused if it is none.
func TestReplayOfAMessageOfAnotherName(t *testing.T) {
	t.Parallel()
	paid, err := proto.Marshal(&walletv1.TransferResponse{Id: "t1", Amount: 1250})
	if err != nil {
		t.Fatal(err)
	}
	for name, tt := range map[string]struct {
		value []byte
		ok    bool
	}{"renamed": {paid, true}, "no answer": {[]byte{0xff}, false}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b := setup(t)
			b.policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
				body, err := proto.Marshal(&idemkeeperv1.Outcome{Messages: []*anypb.Any{{TypeUrl: "type.googleapis.com/wallet.v0.Paid", Value: tt.value}}})
				return idem.Applied(idem.Response{Body: body}), err
			})
			b.wallet.transfer = answers(nil, status.Error(codes.Unavailable, "connection lost"))
			b.start()
			if a := b.pay("k1"); tt.ok {
				b.wantPaid(a, true)
			} else {
				b.wantRefusal(a.err, idem.CodeResultUnavailable)
			}
		})
	}
}
