package rpc

import (
	"context"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

var _ paymentsv1.PaymentServiceServer = (*Server)(nil)

// CreatePayment runs inside the idempotency interceptor, with a client key.
func (s *Server) CreatePayment(ctx context.Context, req *paymentsv1.CreatePaymentRequest) (*paymentsv1.Payment, error) {
	return s.pay(ctx, req)
}

// CreateTrade runs inside the idempotency interceptor, with an issued token.
func (s *Server) CreateTrade(ctx context.Context, req *paymentsv1.CreateTradeRequest) (*paymentsv1.Payment, error) {
	return s.pay(ctx, req)
}

func (s *Server) pay(ctx context.Context, req orderRequest) (*paymentsv1.Payment, error) {
	noteOperation(ctx)
	p, err := s.cfg.Service.Pay(ctx, payments.MerchantOf(ctx), orderOf(req))
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return message(p), nil
}

// IssueToken makes a token for CreateTrade.
func (s *Server) IssueToken(ctx context.Context, _ *paymentsv1.IssueTokenRequest) (*paymentsv1.IssueTokenResponse, error) {
	token, err := s.cfg.Engine.IssueToken(ctx, payments.MerchantOf(ctx), idem.DefaultTokenTTL)
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return &paymentsv1.IssueTokenResponse{Token: string(token.Value), ExpiresAt: timestamppb.New(token.ExpiresAt)}, nil
}

// GetPayment returns a payment of the merchant.
func (s *Server) GetPayment(ctx context.Context, req *paymentsv1.GetPaymentRequest) (*paymentsv1.Payment, error) {
	p, err := s.cfg.Ledger.Payment(ctx, payments.MerchantOf(ctx), req.GetId())
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return message(p), nil
}

// ListPayments returns payments of the merchant, newest first.
func (s *Server) ListPayments(ctx context.Context, req *paymentsv1.ListPaymentsRequest) (*paymentsv1.ListPaymentsResponse, error) {
	limit := int(req.GetLimit())
	if limit < 0 || limit > payments.MaxListLimit {
		return nil, refusal(codeQueryInvalid, "limit is not within 0 and "+strconv.Itoa(payments.MaxListLimit)+".")
	}
	if limit == 0 {
		limit = payments.DefaultListLimit
	}
	list, more, err := payments.List(ctx, s.cfg.Ledger, payments.MerchantOf(ctx), payments.Query{Note: req.Note, Limit: limit})
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	res := &paymentsv1.ListPaymentsResponse{Payments: make([]*paymentsv1.Payment, len(list)), HasMore: more}
	for i, p := range list {
		res.Payments[i] = message(p)
	}
	return res, nil
}

// GetAccount returns an account of the merchant.
func (s *Server) GetAccount(ctx context.Context, req *paymentsv1.GetAccountRequest) (*paymentsv1.GetAccountResponse, error) {
	a, err := s.cfg.Ledger.Account(ctx, payments.MerchantOf(ctx), req.GetId())
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return &paymentsv1.GetAccountResponse{Id: a.ID, Balance: a.Balance, Currency: a.Currency}, nil
}

// orderRequest is a request to move money.
type orderRequest interface {
	proto.Message
	GetFrom() string
	GetTo() string
	GetAmount() int64
	GetCurrency() string
	GetNote() string
}

var (
	_ orderRequest = (*paymentsv1.CreatePaymentRequest)(nil)
	_ orderRequest = (*paymentsv1.CreateTradeRequest)(nil)
)

func orderOf(req orderRequest) payments.Order {
	return payments.Order{From: req.GetFrom(), To: req.GetTo(), Amount: req.GetAmount(), Currency: req.GetCurrency(), Note: req.GetNote()}
}

// message is a payment for clients. A new payment and the same payment read back
// from the ledger give the same message. A resolver relies on that.
func message(p payments.Payment) *paymentsv1.Payment {
	return &paymentsv1.Payment{
		Id: p.ID, From: p.From, To: p.To, Amount: p.Amount, Currency: p.Currency, Note: p.Note,
		Status: p.Status, CreatedAt: timestamppb.New(p.CreatedAt),
	}
}

// Owns reports whether the route of an [idem.Interrupted] is a method of this
// package.
func Owns(route string) bool { return strings.HasPrefix(route, "/payments.v1.") }

// Answer is the stored answer to a payment, for a resolver.
func Answer(p payments.Payment) (idem.Response, error) { return idemgrpc.Outcome(nil, message(p)) }
