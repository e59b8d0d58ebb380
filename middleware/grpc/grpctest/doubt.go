package grpctest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// wantDoubt checks what a client is told of a key in doubt: the operation, that it may have
// happened, the pause before another attempt if there is one, and no mark of a final answer.
func (b *bundle) wantDoubt(a answer, key string, pause time.Duration) {
	b.Helper()
	b.want(a, codes.FailedPrecondition, false)
	info, retry := detailsOf(a.err)
	id := idem.NewKeyID("merchant", idem.Key(key)).OperationID()
	if info.GetReason() != "OUTCOME_UNKNOWN" || info.GetDomain() != "idemkeeper" || info.GetMetadata()["operation_id"] != id || info.GetMetadata()["may_have_happened"] != "true" {
		b.Errorf("ErrorInfo = %v, want the operation %s in doubt", info, id)
	}
	b.wantPause(a, retry, pause)
}

// fails makes both methods of the wallet return an error, after act.
func (b *bundle) fails(failure error, act func(context.Context)) {
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		act(ctx)
		return nil, failure
	}
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s payoutStream) error {
		act(s.Context())
		return failure
	}
	b.start()
}

// doubtCases are about outcomes that are not known.
var doubtCases = doubtTable()

func doubtTable() (cases []testCase) {
	// The codes say by themselves that nothing is decided, so the first caller gets them.
	for _, code := range []codes.Code{codes.Canceled, codes.Unknown, codes.DeadlineExceeded, codes.Aborted, codes.Internal, codes.Unavailable, codes.DataLoss, codes.Code(99)} {
		cases = append(cases, testCase{"live " + code.String(), func(b *bundle) {
			b.fails(status.Error(code, "as the handler says"), func(context.Context) {})
			for _, a := range []answer{b.pay("unary"), b.payout("stream")} {
				b.want(a, code, false)
				if got := status.Convert(a.err).Message(); got != "as the handler says" {
					b.Errorf("message %q, want that of the handler", got)
				}
			}
			for range 2 {
				b.wantDoubt(b.pay("unary"), "unary", 0)
				b.wantDoubt(b.payout("stream"), "stream", 0)
			}
			b.wantState("unary", driver.StateUnknown)
			b.wantRuns(2)
		}})
	}
	// A client would take these for an end, so it does not get them from an attempt in doubt.
	for _, code := range []codes.Code{codes.Unauthenticated, codes.PermissionDenied, codes.ResourceExhausted} {
		cases = append(cases, testCase{"told as doubt from the start: " + code.String(), func(b *bundle) {
			st, err := status.New(code, "of the bank").WithDetails(&errdetails.RetryInfo{RetryDelay: durationpb.New(3 * time.Second)})
			if err != nil {
				b.Fatal(err)
			}
			b.fails(st.Err(), func(ctx context.Context) {
				if _, err := idem.CheckOwner(ctx); err != nil {
					b.Errorf("CheckOwner() = %v", err)
				}
			})
			for _, pause := range []time.Duration{3 * time.Second, 0} { // the handler's goes along once
				b.wantDoubt(b.pay("unary"), "unary", pause)
				b.wantDoubt(b.payout("stream"), "stream", pause)
			}
			b.wantRuns(2)
		}})
	}
	return append(cases, otherDoubts...)
}

var otherDoubts = []testCase{
	{"a relayed refusal is not told as ours", func(b *bundle) {
		for i, code := range []idem.Code{idem.CodeInProgress, idem.CodeKeyReused, idem.CodeKeyMissing, idem.CodeOutcomeUnknown, idem.CodeUnavailable} {
			st, err := status.New(codes.Code(code.GRPCCode()), "no").WithDetails(&errdetails.ErrorInfo{Domain: "idemkeeper", Reason: reasonOf(code)})
			if err != nil {
				b.Fatal(err)
			}
			b.fails(errors.Join(errors.New("bank"), st.Err()), func(context.Context) {})
			unary, stream := fmt.Sprint("unary", i), fmt.Sprint("stream", i)
			for range 2 {
				b.wantDoubt(b.pay(unary), unary, 0)
				b.wantDoubt(b.payout(stream), stream, 0)
			}
			b.wantRuns(int64(2 * (i + 1)))
		}
	}},
	{"an ErrorInfo of another domain is an outcome", func(b *bundle) {
		st, err := status.New(codes.FailedPrecondition, "no").WithDetails(&errdetails.ErrorInfo{Domain: "bank.example", Reason: "KEY_REUSED"})
		if err != nil {
			b.Fatal(err)
		}
		b.fails(st.Err(), func(context.Context) {})
		for _, replayed := range []bool{false, true} {
			b.want(b.pay("k1"), codes.FailedPrecondition, replayed)
		}
	}},
	{"a panic goes on, and is in doubt", func(b *bundle) {
		b.outside = recovering
		b.fails(nil, func(context.Context) { panic("boom") })
		for _, a := range []answer{b.pay("unary"), b.payout("stream")} {
			b.want(a, codes.Internal, false)
			if got := status.Convert(a.err).Message(); got != "recovered outside: boom" {
				b.Errorf("message %q, want the panic to go on", got)
			}
		}
		b.wantDoubt(b.pay("unary"), "unary", 0)
		b.wantDoubt(b.payout("stream"), "stream", 0)
		b.wantRuns(2)
	}},
	{"a resolver settles it at once", func(b *bundle) {
		b.start()
		b.want(b.pay("model"), codes.OK, false, 1250)
		model, err := b.records.Get(b.Context(), idem.NewKeyID("merchant", "model"))
		if err != nil {
			b.Fatal(err)
		}
		b.options.Policy.InDoubt = idem.AskResolver(func(context.Context, idem.Interrupted) (idem.Resolution, error) {
			return idem.Applied(idem.Response(*model.Response)), nil
		})
		b.fails(status.Error(codes.Unavailable, "connection lost"), func(context.Context) {})
		for range 2 {
			b.want(b.pay("k1"), codes.OK, true, 1250)
		}
	}},
}
