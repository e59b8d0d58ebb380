package rpc_test

import (
	"context"
	"errors"
	"regexp"
	"strings"
	"testing"
	"time"

	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
)

func TestPaymentIsMadeOnceAndReplayed(t *testing.T) {
	f := setup(t)
	first := f.pay("k", order())
	wantStatus(t, "first", first.err, codes.OK, "")
	p := first.payment
	if first.replayed || !regexp.MustCompile(`^pay_[0-9a-f]{32}$`).MatchString(p.GetId()) || p.GetFrom() != "alice" || p.GetTo() != "bob" ||
		p.GetAmount() != 1250 || p.GetCurrency() != "USD" || p.GetNote() != "n" || p.GetStatus() != "succeeded" || !p.GetCreatedAt().IsValid() {
		t.Errorf("first: %v, replayed: %v", p, first.replayed)
	}
	again := f.pay("k", order())
	if again.err != nil || !again.replayed || !proto.Equal(again.payment, p) {
		t.Errorf("repeat: %v %v, replayed: %v, want %v replayed", again.payment, again.err, again.replayed, p)
	}
	got, err := f.client.GetPayment(as("demo", ""), &paymentsv1.GetPaymentRequest{Id: p.GetId()})
	if err != nil || !proto.Equal(got, p) {
		t.Errorf("GetPayment: %v, %v, want %v", got, err, p)
	}
	account, err := f.client.GetAccount(as("demo", ""), &paymentsv1.GetAccountRequest{Id: "alice"})
	if err != nil || account.GetBalance() != 998_750 || account.GetCurrency() != "USD" || account.GetId() != "alice" {
		t.Errorf("alice: %v, %v", account, err)
	}
	other := order()
	other.Amount++
	wantStatus(t, "another amount", f.pay("k", other).err, codes.FailedPrecondition, "KEY_REUSED")
	wantStatus(t, "no key", f.pay("", order()).err, codes.InvalidArgument, "KEY_MISSING")
	wantStatus(t, "malformed key", f.pay("a, b", order()).err, codes.InvalidArgument, "KEY_INVALID")
	f.wantPayments(1)
}

func TestRefusedPaymentsAreStoredAndReplayed(t *testing.T) {
	f := setup(t)
	for name, tt := range map[string]struct {
		change func(*paymentsv1.CreatePaymentRequest)
		code   codes.Code
		reason string
	}{
		"no-money":       {func(r *paymentsv1.CreatePaymentRequest) { r.Amount = 1_000_001 }, codes.FailedPrecondition, "INSUFFICIENT_FUNDS"},
		"no-payer":       {func(r *paymentsv1.CreatePaymentRequest) { r.From = "zoe" }, codes.NotFound, "ACCOUNT_UNKNOWN"},
		"no-payee":       {func(r *paymentsv1.CreatePaymentRequest) { r.To = "zoe" }, codes.NotFound, "ACCOUNT_UNKNOWN"},
		"other-currency": {func(r *paymentsv1.CreatePaymentRequest) { r.Currency = "EUR" }, codes.InvalidArgument, "CURRENCY_MISMATCH"},
	} {
		req := order()
		tt.change(req)
		first, again := f.pay(name, req), f.pay(name, req)
		wantStatus(t, name, first.err, tt.code, tt.reason)
		if first.replayed || !again.replayed || !proto.Equal(status.Convert(first.err).Proto(), status.Convert(again.err).Proto()) {
			t.Errorf("%s, repeated: %v, replayed: %v, want %v replayed", name, again.err, again.replayed, first.err)
		}
	}
	f.wantPayments(0)
}

func TestTradeConsumesItsToken(t *testing.T) {
	f := setup(t)
	token, err := f.client.IssueToken(as("demo", ""), &paymentsv1.IssueTokenRequest{})
	if err != nil || !token.GetExpiresAt().IsValid() {
		t.Fatalf("IssueToken: %v, %v", token, err)
	}
	key := token.GetToken()
	f.wantState(key, "issued")
	wantStatus(t, "invalid body", f.trade(key, &paymentsv1.CreateTradeRequest{}).err, codes.InvalidArgument, "BODY_INVALID")
	wantStatus(t, "where a client key is wanted", f.pay(key, order()).err, codes.FailedPrecondition, "KEY_REUSED")
	f.wantState(key, "issued")
	first := f.trade(key, tradeOrder())
	wantStatus(t, "trade", first.err, codes.OK, "")
	if again := f.trade(key, tradeOrder()); again.err != nil || !again.replayed || !proto.Equal(again.payment, first.payment) {
		t.Errorf("repeat: %v %v, replayed: %v, want %v replayed", again.payment, again.err, again.replayed, first.payment)
	}
	wantStatus(t, "junk token", f.trade("junk", tradeOrder()).err, codes.PermissionDenied, "TOKEN_UNKNOWN")
	wantStatus(t, "no token", f.trade("", tradeOrder()).err, codes.InvalidArgument, "KEY_MISSING")
	f.wantPayments(1)

	// A token of one transport is good on the other, once.
	_, body := f.over("POST", "/v1/tokens", "", "")
	http := regexp.MustCompile(`"token":"([^"]+)"`).FindStringSubmatch(body)[1]
	wantStatus(t, "token from HTTP", f.trade(http, tradeOrder()).err, codes.OK, "")
	if status, body := f.over("POST", "/v1/trades", http, orderBody); status != 422 || !strings.Contains(body, `"key-reused"`) {
		t.Errorf("token used over gRPC: %d %s, want 422 key-reused", status, body)
	}
	f.wantPayments(2)
}

func TestTransportsShareKeys(t *testing.T) {
	f := setup(t)
	if status, body := f.over("POST", "/v1/payments", "http", orderBody); status != 201 {
		t.Fatalf("payment over HTTP: %d %s", status, body)
	}
	wantStatus(t, "key used over HTTP", f.pay("http", order()).err, codes.FailedPrecondition, "KEY_REUSED")
	wantStatus(t, "payment over gRPC", f.pay("grpc", order()).err, codes.OK, "")
	if status, body := f.over("POST", "/v1/payments", "grpc", orderBody); status != 422 || !strings.Contains(body, `"key-reused"`) {
		t.Errorf("key used over gRPC: %d %s, want 422 key-reused", status, body)
	}
	f.wantPayments(2)
}

// The invalid orders are the same as over HTTP, including one with an unknown field.
func TestInvalidBodiesLeaveTheKeyUntouched(t *testing.T) {
	f := setup(t)
	unknown := order()
	unknown.ProtoReflect().SetUnknown([]byte{0xf8, 0x07, 1}) // field 127
	long := order()
	long.Note = strings.Repeat("n", 501)
	for name, req := range map[string]*paymentsv1.CreatePaymentRequest{
		"empty": {}, "unknown field": unknown, "long note": long,
		"amount":   {From: "alice", To: "bob", Amount: -1, Currency: "USD"},
		"currency": {From: "alice", To: "bob", Amount: 1, Currency: "usd"},
		"itself":   {From: "bob", To: "bob", Amount: 1, Currency: "USD"},
	} {
		wantStatus(t, name, f.pay("k", req).err, codes.InvalidArgument, "BODY_INVALID")
		wantStatus(t, name+" without a key", f.pay("", req).err, codes.InvalidArgument, "BODY_INVALID")
	}
	long.Note = strings.Repeat("n", 1<<20)
	wantStatus(t, "too long", f.pay("k", long).err, codes.ResourceExhausted, "BODY_TOO_LARGE")
	f.wantState("k", "none")
	wantStatus(t, "valid", f.pay("k", order()).err, codes.OK, "")
	f.wantState("k", "completed")
	for _, line := range []string{
		`idemkeeper_request_duration_seconds_count{error_type="body-invalid",idemkeeper_outcome="refused",idemkeeper_route="/payments.v1.PaymentService/CreatePayment"} 12`,
		`rpc_server_call_duration_seconds_count{rpc_method="payments.v1.PaymentService/CreatePayment",rpc_response_status_code="OK",rpc_system_name="grpc"} 1`,
	} {
		f.wantMetric(line)
	}
}

// wantMetric waits for a line of the metrics. A call is measured after its client has the answer.
func (f *fixture) wantMetric(line string) {
	f.t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, metrics := f.over("GET", "/metrics", "", ""); strings.Contains(metrics, line) {
			return
		}
		if time.Now().After(end) {
			f.t.Errorf("metrics have no %s", line)
			return
		}
	}
}

func TestWithoutAPIKeyNothingIsServed(t *testing.T) {
	f := setup(t)
	for _, authorization := range [][]string{nil, {""}, {"Bearer"}, {"Bearer "}, {"Bearer nobody"}, {"Basic demo"}, {"demo"}, {"Bearer demo", "Bearer demo"}} {
		md := metadata.MD{"authorization": authorization, "idempotency-key": {"k"}}
		ctx := metadata.NewOutgoingContext(t.Context(), md)
		calls := map[string]func() error{
			"CreatePayment": func() error { _, err := f.client.CreatePayment(ctx, order()); return err },
			"CreateTrade":   func() error { _, err := f.client.CreateTrade(ctx, tradeOrder()); return err },
			"IssueToken":    func() error { _, err := f.client.IssueToken(ctx, &paymentsv1.IssueTokenRequest{}); return err },
			"GetPayment":    func() error { _, err := f.client.GetPayment(ctx, &paymentsv1.GetPaymentRequest{}); return err },
			"ListPayments":  func() error { _, err := f.client.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{}); return err },
			"GetAccount": func() error {
				_, err := f.client.GetAccount(ctx, &paymentsv1.GetAccountRequest{Id: "alice"})
				return err
			},
		}
		for name, call := range calls {
			wantStatus(t, name+" with "+strings.Join(authorization, "+"), call(), codes.Unauthenticated, "UNAUTHORIZED")
		}
	}
	f.wantState("k", "none")
	f.wantPayments(0)
	if _, err := f.client.CreatePayment(metadata.AppendToOutgoingContext(t.Context(), "authorization", "bearer test", "idempotency-key", "k"), order()); err != nil {
		t.Errorf("another merchant's payment, scheme in small letters: %v", err)
	}
	f.wantState("k", "none")
	f.wantPayments(0)
}

func TestReads(t *testing.T) {
	f := setup(t)
	ctx := as("demo", "")
	_, err := f.client.GetPayment(ctx, &paymentsv1.GetPaymentRequest{Id: "pay_x"})
	wantStatus(t, "no such payment", err, codes.NotFound, "PAYMENT_UNKNOWN")
	_, err = f.client.GetAccount(ctx, &paymentsv1.GetAccountRequest{Id: "zoe"})
	wantStatus(t, "no such account", err, codes.NotFound, "ACCOUNT_UNKNOWN")
	for _, limit := range []int32{-1, 10_001} {
		_, err = f.client.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{Limit: limit})
		wantStatus(t, "limit", err, codes.InvalidArgument, "QUERY_INVALID")
	}
	for i, note := range []string{"a", "b", "a"} {
		req := order()
		req.Note = note
		wantStatus(t, note, f.pay(string(rune('x'+i)), req).err, codes.OK, "")
		first, err := f.client.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{Limit: 1})
		if err != nil || len(first.GetPayments()) != 1 || first.GetHasMore() != (i > 0) || first.GetPayments()[0].GetNote() != note {
			t.Errorf("limited list: %v, %v, want the newest and more", first, err)
		}
	}
	list, err := f.client.ListPayments(ctx, &paymentsv1.ListPaymentsRequest{Note: new("b")})
	if err != nil || len(list.GetPayments()) != 1 || list.GetHasMore() || list.GetPayments()[0].GetNote() != "b" {
		t.Errorf("list by note: %v, %v, want that one", list, err)
	}
}

// The ledger fails after the payment, and the resolver answers like the handler.
func TestOutcomeInDoubt(t *testing.T) {
	lost := errors.New("connection lost: secret")
	t.Run("after the effect, the resolver finds it", func(t *testing.T) {
		f := setup(t)
		f.ledger.after = func(context.Context) error { f.ledger.after = nil; return lost }
		first := f.pay("k", order())
		again := f.pay("k", order())
		wantStatus(t, "repeat", again.err, codes.OK, "")
		if first.err == nil && !proto.Equal(first.payment, again.payment) {
			t.Errorf("repeat: %v, want %v", again.payment, first.payment)
		}
		got, err := f.client.GetPayment(as("demo", ""), &paymentsv1.GetPaymentRequest{Id: again.payment.GetId()})
		if err != nil || !proto.Equal(got, again.payment) {
			t.Errorf("the payment is %v, %v, want %v", got, err, again.payment)
		}
		f.wantPayments(1)
	})
	t.Run("before the effect, the resolver says so", func(t *testing.T) {
		f := setup(t)
		f.ledger.before = func(context.Context) error { f.ledger.before = nil; return lost }
		wantStatus(t, "first", f.pay("k", order()).err, codes.Unavailable, "LEDGER_UNAVAILABLE")
		wantStatus(t, "repeat", f.pay("k", order()).err, codes.OK, "")
		f.wantPayments(1)
	})
	t.Run("without a resolver it stays unknown", func(t *testing.T) {
		f := setup(t, func(_ *fixture, c *rpc.Config) { c.Resolver = nil })
		f.ledger.after = func(context.Context) error { return lost }
		first, again := f.pay("k", order()), f.pay("k", order())
		wantStatus(t, "first", first.err, codes.Unavailable, "LEDGER_UNAVAILABLE")
		if strings.Contains(first.err.Error(), "secret") {
			t.Errorf("first: %v, want an error that tells no secrets", first.err)
		}
		// The first answer is in the words of a refusal, and no outcome.
		wantStatus(t, "repeat", again.err, codes.FailedPrecondition, "OUTCOME_UNKNOWN")
		f.wantState("k", "unknown")
		f.wantPayments(1)
	})
	t.Run("a later holder has been there", func(t *testing.T) {
		f := setup(t, func(_ *fixture, c *rpc.Config) { c.Resolver = nil })
		f.ledger.before = func(context.Context) error { return payments.ErrFenced }
		wantStatus(t, "payment", f.pay("k", order()).err, codes.Unavailable, "LEDGER_UNAVAILABLE")
		f.wantPayments(0)
	})
	t.Run("a panic is in doubt", func(t *testing.T) {
		f := setup(t, func(_ *fixture, c *rpc.Config) { c.Resolver = nil })
		f.ledger.after = func(context.Context) error { panic("secret") }
		got := f.pay("k", order())
		wantStatus(t, "panic", got.err, codes.Internal, "")
		if s := status.Convert(got.err); len(s.Details()) > 0 || strings.Contains(s.Message(), "secret") {
			t.Errorf("panic: %v, want no details", s)
		}
		f.wantState("k", "unknown")
	})
}
