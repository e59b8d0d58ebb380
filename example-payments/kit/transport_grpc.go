package kit

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

// OverGRPC is the transport gRPC.
type OverGRPC struct{}

// String implements [Transport].
func (OverGRPC) String() string { return "gRPC" }

// Order implements [Transport].
func (OverGRPC) Order(ctx context.Context, c Client, r Route, keys []string, o Order) Answer {
	return c.call(ctx, keys, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (proto.Message, error) {
		if r == ToTrades {
			return s.CreateTrade(ctx, &paymentsv1.CreateTradeRequest{From: o.From, To: o.To, Amount: o.Amount, Currency: o.Currency, Note: o.Note}, opts...)
		}
		return s.CreatePayment(ctx, &paymentsv1.CreatePaymentRequest{From: o.From, To: o.To, Amount: o.Amount, Currency: o.Currency, Note: o.Note}, opts...)
	})
}

func (OverGRPC) token(ctx context.Context, c Client) (token string, expires time.Time, a Answer) {
	res := &paymentsv1.IssueTokenResponse{}
	a = c.call(ctx, nil, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (_ proto.Message, err error) {
		res, err = s.IssueToken(ctx, &paymentsv1.IssueTokenRequest{}, opts...)
		return res, err
	})
	return res.GetToken(), res.GetExpiresAt().AsTime(), a
}

func (OverGRPC) payments(ctx context.Context, c Client, note string) ([]Payment, error) {
	var list []Payment
	a := c.call(ctx, nil, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (proto.Message, error) {
		res, err := s.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{Note: &note}, opts...)
		for _, p := range res.GetPayments() {
			list = append(list, paymentOf(p))
		}
		return res, err
	})
	return list, a.failure()
}

// Balance implements [Transport].
func (OverGRPC) Balance(ctx context.Context, c Client, account string) (n int64, err error) {
	a := c.call(ctx, nil, func(ctx context.Context, s paymentsv1.PaymentServiceClient, opts ...grpc.CallOption) (proto.Message, error) {
		res, err := s.GetAccount(ctx, &paymentsv1.GetAccountRequest{Id: account}, opts...)
		n = res.GetBalance()
		return res, err
	})
	return n, a.failure()
}

// failure is an answer that is no success, as an error.
func (a Answer) failure() error {
	if a.Err == nil && a.RPC.Code() != codes.OK {
		return errors.New(a.String())
	}
	return a.Err
}

// Dial opens a connection for one call, as HTTP has here. Nothing sends a call
// again behind the test's back.
func (c Client) Dial() (*grpc.ClientConn, error) {
	return grpc.NewClient("passthrough:///"+c.RPC, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithDisableRetry(), grpc.WithDisableServiceConfig())
}

// call makes one call.
func (c Client) call(ctx context.Context, keys []string, do func(context.Context, paymentsv1.PaymentServiceClient, ...grpc.CallOption) (proto.Message, error)) Answer {
	start := time.Now()
	conn := c.Conn
	if conn == nil {
		var err error
		if conn, err = c.Dial(); err != nil {
			return Answer{Err: err}
		}
		defer conn.Close()
	}
	md := metadata.MD{"authorization": {"Bearer " + c.Token}}
	if len(keys) > 0 {
		md["idempotency-key"] = keys
	}
	var a Answer
	res, err := do(metadata.NewOutgoingContext(ctx, md), paymentsv1.NewPaymentServiceClient(conn), grpc.Header(&a.MetaHeader), grpc.Trailer(&a.MetaTrailer))
	a.Took = time.Since(start)
	a.ReadGRPC(ctx, res, err)
	return a
}

// ReadGRPC takes what a call returned apart.
func (a *Answer) ReadGRPC(ctx context.Context, res proto.Message, err error) {
	if a.RPC = status.Convert(err); a.RPC == nil { // which is how it says OK
		a.RPC = status.New(codes.OK, "")
	}
	info, retry, details := a.details()
	switch code := a.RPC.Code(); {
	case ctx.Err() != nil && err != nil && info == nil: // it is the client that hung up
		a.Err = fmt.Errorf("%w: %w", ctx.Err(), err)
	case (code == codes.Unavailable || code == codes.DeadlineExceeded) && info == nil: // of the connection
		a.Err = err
	case code == codes.OK:
		a.Wire = wireOf(res)
		if p, ok := res.(*paymentsv1.Payment); ok {
			a.Payment = paymentOf(p)
		}
	default:
		a.Wire = wireOf(a.RPC.Proto())
		a.retry = retry.GetRetryDelay().AsDuration() > 0
		a.Code = strings.ToLower(strings.ReplaceAll(info.GetReason(), "_", "-"))
	}
	if a.Err != nil {
		return
	}
	v := a.MetaHeader.Get("idempotent-replayed")
	a.Replayed = slices.Equal(v, []string{"true"})
	if len(v) > 0 && !a.Replayed {
		a.FormErr = fmt.Errorf("idempotent-replayed: %q", v)
	}
	if a.RPC.Code() != codes.OK {
		a.FormErr = errors.Join(a.FormErr, a.checkStatus(info, retry, details))
	}
}

// details finds those that a refusal may have, and counts all.
func (a *Answer) details() (info *errdetails.ErrorInfo, retry *errdetails.RetryInfo, n int) {
	for _, d := range a.RPC.Details() {
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
func (a *Answer) checkStatus(info *errdetails.ErrorInfo, retry *errdetails.RetryInfo, details int) error {
	p, known := problems[a.Code]
	if !known {
		return fmt.Errorf("unknown code %q", a.Code)
	}
	reason := strings.ToUpper(strings.ReplaceAll(a.Code, "-", "_"))
	if a.RPC.Code() != p.code || info.GetDomain() != p.domain || info.GetReason() != reason || !a.namesDoubt(info.GetMetadata()) {
		return fmt.Errorf("%v with %v, want %v with domain %s and reason %s", a.RPC.Code(), info, p.code, p.domain, reason)
	}
	want := 1
	if retry != nil {
		want++
	}
	if details != want || (retry != nil) != a.retry {
		return fmt.Errorf("details %v, want one ErrorInfo, and one RetryInfo with a delay at most", a.RPC.Details())
	}
	return errors.Join(a.checkText(a.RPC.Message()), a.checkRetryHint(p))
}

// namesDoubt reports whether the metadata of a refusal name the operation and say that it may have
// happened, if its outcome is in doubt, and nothing otherwise.
func (a *Answer) namesDoubt(metadata map[string]string) bool {
	if len(metadata) == 0 {
		return a.Code != "outcome-unknown"
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
func paymentOf(p *paymentsv1.Payment) Payment {
	return Payment{p.GetId(), Order{p.GetFrom(), p.GetTo(), p.GetAmount(), p.GetCurrency(), p.GetNote()}, p.GetStatus(),
		p.GetCreatedAt().AsTime().Format("2006-01-02T15:04:05.000000Z")}
}
