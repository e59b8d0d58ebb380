package tests

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// overGRPC is the transport gRPC.
type overGRPC struct{}

// String implements [transport].
func (overGRPC) String() string { return "gRPC" }

func (overGRPC) order(ctx context.Context, c client, r route, keys []string, o order) answer {
	return c.call(ctx, keys, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (proto.Message, error) {
		if r == toTrades {
			return s.CreateTrade(ctx, &paymentsv1.CreateTradeRequest{From: o.From, To: o.To, Amount: o.Amount, Currency: o.Currency, Note: o.Note}, opts...)
		}
		return s.CreatePayment(ctx, &paymentsv1.CreatePaymentRequest{From: o.From, To: o.To, Amount: o.Amount, Currency: o.Currency, Note: o.Note}, opts...)
	})
}

func (overGRPC) token(ctx context.Context, c client) (token string, expires time.Time, a answer) {
	res := &paymentsv1.IssueTokenResponse{}
	a = c.call(ctx, nil, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (_ proto.Message, err error) {
		res, err = s.IssueToken(ctx, &paymentsv1.IssueTokenRequest{}, opts...)
		return res, err
	})
	return res.GetToken(), res.GetExpiresAt().AsTime(), a
}

func (overGRPC) payments(ctx context.Context, c client, note string) ([]payment, error) {
	var list []payment
	a := c.call(ctx, nil, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (proto.Message, error) {
		res, err := s.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{Note: &note}, opts...)
		for _, p := range res.GetPayments() {
			list = append(list, paymentOf(p))
		}
		return res, err
	})
	return list, a.failure()
}

func (overGRPC) balance(ctx context.Context, c client, account string) (n int64, err error) {
	a := c.call(ctx, nil, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (proto.Message, error) {
		res, err := s.GetAccount(ctx, &paymentsv1.GetAccountRequest{Id: account}, opts...)
		n = res.GetBalance()
		return res, err
	})
	return n, a.failure()
}

// failure is an answer that is no success, as an error.
func (a answer) failure() error {
	if a.err == nil && a.rpc.Code() != codes.OK {
		return errors.New(a.String())
	}
	return a.err
}

// dial opens a connection for one call, as HTTP has here. Nothing sends a call
// again behind the test's back.
func (c client) dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+c.rpc, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig())
}

// call makes one call.
func (c client) call(ctx context.Context, keys []string, do func(context.Context, paymentsv1.PaymentServiceClient, ...grpc.CallOption) (proto.Message, error)) answer {
	start := time.Now()
	conn := c.conn
	if conn == nil {
		var err error
		if conn, err = c.dial(); err != nil {
			return answer{err: err}
		}
		defer conn.Close()
	}
	md := metadata.MD{"authorization": {"Bearer " + c.token}}
	if len(keys) > 0 {
		md["idempotency-key"] = keys
	}
	var a answer
	res, err := do(metadata.NewOutgoingContext(ctx, md), paymentsv1.NewPaymentServiceClient(conn), grpc.Header(&a.metaHeader), grpc.Trailer(&a.metaTrailer))
	a.took = time.Since(start)
	a.readGRPC(ctx, res, err)
	return a
}

// readGRPC takes what a call returned apart.
func (a *answer) readGRPC(ctx context.Context, res proto.Message, err error) {
	if a.rpc = status.Convert(err); a.rpc == nil { // which is how it says OK
		a.rpc = status.New(codes.OK, "")
	}
	info, retry, details := a.details()
	switch code := a.rpc.Code(); {
	case ctx.Err() != nil && err != nil && info == nil: // it is the client that hung up
		a.err = fmt.Errorf("%w: %w", ctx.Err(), err)
	case (code == codes.Unavailable || code == codes.DeadlineExceeded) && info == nil: // of the connection
		a.err = err
	case code == codes.OK:
		a.wire = wireOf(res)
		if p, ok := res.(*paymentsv1.Payment); ok {
			a.payment = paymentOf(p)
		}
	default:
		a.wire = wireOf(a.rpc.Proto())
		a.retry = retry.GetRetryDelay().AsDuration() > 0
		a.code = strings.ToLower(strings.ReplaceAll(info.GetReason(), "_", "-"))
	}
	if a.err != nil {
		return
	}
	v := a.metaHeader.Get("idempotent-replayed")
	a.replayed = slices.Equal(v, []string{"true"})
	if len(v) > 0 && !a.replayed {
		a.formErr = fmt.Errorf("idempotent-replayed: %q", v)
	}
	if a.rpc.Code() != codes.OK {
		a.formErr = errors.Join(a.formErr, a.checkStatus(info, retry, details))
	}
}

// details finds those that a refusal may have, and counts all.
func (a *answer) details() (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo, n int) {
	for _, d := range a.rpc.Details() {
		switch d := d.(type) {
		case *errdetails.ErrorInfo:
			info = d
		case *errdetails.RetryInfo:
			retry = d
		}
		n++
	}
	return info, retry, n
}

// checkStatus compares a refusal with its row of the table.
func (a *answer) checkStatus(info *errdetails.ErrorInfo, retry *errdetails.RetryInfo, details int) error {
	p, known := problems[a.code]
	if !known {
		return fmt.Errorf("unknown code %q", a.code)
	}
	reason := strings.ToUpper(strings.ReplaceAll(a.code, "-", "_"))
	if a.rpc.Code() != p.code || info.GetDomain() != p.domain || info.GetReason() != reason || !a.namesDoubt(info.GetMetadata()) {
		return fmt.Errorf("%v with %v, want %v with domain %s and reason %s", a.rpc.Code(), info, p.code, p.domain, reason)
	}
	want := 1
	if retry != nil {
		want++
	}
	if details != want || (retry != nil) != a.retry {
		return fmt.Errorf("details %v, want one ErrorInfo, and one RetryInfo with a delay at most", a.rpc.Details())
	}
	return errors.Join(a.checkText(a.rpc.Message()), a.checkRetryHint(p))
}

// namesDoubt reports whether the metadata of a refusal name the operation and say that it may have
// happened, if its outcome is in doubt, and nothing otherwise.
func (a *answer) namesDoubt(metadata map[string]string) bool {
	if len(metadata) == 0 {
		return a.code != "outcome-unknown"
	}
	return len(metadata) == 2 && strings.HasPrefix(metadata["operation_id"], "op_") && metadata["may_have_happened"] == "true"
}

// wireOf is a message in a form in which equal messages are equal.
func wireOf(m proto.Message) string {
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		return err.Error()
	}
	return string(b)
}

// paymentOf is a payment as JSON shows it.
func paymentOf(p *paymentsv1.Payment) payment {
	return payment{p.GetId(), order{p.GetFrom(), p.GetTo(), p.GetAmount(), p.GetCurrency(), p.GetNote()}, p.GetStatus(),
		p.GetCreatedAt().AsTime().Format("2006-01-02T15:04:05.000000Z")}
}
