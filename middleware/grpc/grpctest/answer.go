package grpctest

import (
	"context"
	"errors"
	"io"
	"slices"
	"strconv"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// answer is what a client got of a call, unary or streamed.
type answer struct {
	numbers         []int32 // of the messages: the amount of a transfer, the numbers of a payout
	err             error   // nil for OK
	header, trailer metadata.MD
}

// replayed reports whether an answer has the mark. A client may look in the header or in the
// trailer.
func (a answer) replayed() bool {
	return len(a.header.Get("idempotent-replayed"))+len(a.trailer.Get("idempotent-replayed")) > 0
}

func usual() *walletv1.TransferRequest { return &walletv1.TransferRequest{To: "bob", Amount: 1250} }

// pay sends the usual transfer.
func (b *bundle) pay(keys ...string) answer { return b.transfer(b.withKeys(keys...), usual()) }

func (b *bundle) transfer(ctx context.Context, req *walletv1.TransferRequest) (a answer) {
	r, err := b.client.Transfer(ctx, req, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	if a.err = err; err == nil {
		a.numbers = []int32{int32(r.GetAmount())}
	}
	return a
}

// payout asks for a stream of three messages.
func (b *bundle) payout(keys ...string) answer { return b.stream(b.withKeys(keys...)) }

func (b *bundle) stream(ctx context.Context) (a answer) {
	s, err := b.client.Payout(ctx, &walletv1.PayoutRequest{Count: 3}, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	for err == nil {
		var r *walletv1.PayoutResponse
		if r, err = s.Recv(); err == nil {
			a.numbers = append(a.numbers, r.GetNumber())
		}
	}
	if !errors.Is(err, io.EOF) {
		a.err = err
	}
	return a
}

// want checks an answer of the handler.
func (b *bundle) want(a answer, code codes.Code, replayed bool, numbers ...int32) {
	b.Helper()
	if status.Code(a.err) != code || !slices.Equal(a.numbers, numbers) || a.replayed() != replayed {
		b.Fatalf("answer = %v, %v (replayed %v), want %v, %v (replayed %v)", a.numbers, a.err, a.replayed(), numbers, code, replayed)
	}
	if replayed && (!slices.Equal(a.header.Get("idempotent-replayed"), []string{"true"}) || !slices.Equal(a.trailer.Get("idempotent-replayed"), []string{"true"})) {
		b.Errorf("header %v and trailer %v, want the mark in both", a.header, a.trailer)
	}
}

// wantRefusal checks all that a refusal carries.
func (b *bundle) wantRefusal(a answer, code idem.Code) {
	b.Helper()
	b.want(a, codes.Code(code.GRPCCode()), false)
	info, retry := detailsOf(a.err)
	if want := reasonOf(code); info.GetReason() != want || info.GetDomain() != "idemkeeper" {
		b.Errorf("ErrorInfo = %v, want %s of idemkeeper", info, want)
	}
	b.wantPause(a, retry, idem.NewRefusal(code, nil).RetryAfter)
}

func reasonOf(code idem.Code) string {
	return strings.ToUpper(strings.ReplaceAll(string(code), "-", "_"))
}

// wantPause checks what a refusal says about another attempt. Without a pause it forbids it.
func (b *bundle) wantPause(a answer, retry *errdetails.RetryInfo, pause time.Duration) {
	b.Helper()
	pushback := "-1"
	if pause > 0 {
		pushback = strconv.FormatInt(pause.Milliseconds(), 10)
	}
	if (retry != nil) != (pause > 0) || retry.GetRetryDelay().AsDuration() != pause || !slices.Equal(a.trailer.Get("grpc-retry-pushback-ms"), []string{pushback}) {
		b.Errorf("%v: RetryInfo = %v and trailer %v, want a pause of %v", a.err, retry, a.trailer, pause)
	}
}

// detailsOf returns the ErrorInfo of this project and the RetryInfo.
func detailsOf(err error) (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo) {
	for _, d := range status.Convert(err).Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		}
	}
	return info, retry
}

func (b *bundle) wantRuns(n int64) {
	b.Helper()
	if got := b.wallet.runs.Load(); got != n {
		b.Fatalf("handler ran %d times, want %d", got, n)
	}
}

func (b *bundle) wantState(key string, want driver.State) {
	b.Helper()
	got, err := b.engine.Status(context.Background(), "merchant", idem.Key(key))
	if err != nil || got.State != want {
		b.Fatalf("Status(%q) = %v, %v, want %v", key, got.State, err, want)
	}
}
