package rpc

import (
	"context"
	"strconv"

	"google.golang.org/protobuf/types/known/timestamppb"

	"github.com/idemkeeper/idemkeeper/example-payments/auth"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
)

var _ paymentsv1.PaymentServiceServer = (*Server)(nil)

// CreatePayment runs behind the idempotency interceptor, with a client's key.
func (s *Server) CreatePayment(ctx context.Context, req *paymentsv1.CreatePaymentRequest) (*paymentsv1.Payment, error) {
	return s.pay(ctx, req)
}

// CreateTrade runs behind the idempotency interceptor, with an issued token.
func (s *Server) CreateTrade(ctx context.Context, req *paymentsv1.CreateTradeRequest) (*paymentsv1.Payment, error) {
	return s.pay(ctx, req)
}

func (s *Server) pay(ctx context.Context, req orderRequest) (*paymentsv1.Payment, error) {
	note(ctx)
	p, err := s.cfg.Service.Pay(ctx, auth.MerchantOf(ctx), orderOf(req))
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return message(p), nil
}

// IssueToken makes a token for CreateTrade.
func (s *Server) IssueToken(ctx context.Context, _ *paymentsv1.IssueTokenRequest) (*paymentsv1.IssueTokenResponse, error) {
	token, err := s.cfg.Engine.IssueToken(ctx, auth.MerchantOf(ctx), idem.DefaultTokenTTL)
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return &paymentsv1.IssueTokenResponse{Token: string(token.Value), ExpiresAt: timestamppb.New(token.ExpiresAt)}, nil
}

// GetPayment returns a payment of the merchant.
func (s *Server) GetPayment(ctx context.Context, req *paymentsv1.GetPaymentRequest) (*paymentsv1.Payment, error) {
	p, err := s.cfg.Ledger.Payment(ctx, auth.MerchantOf(ctx), req.GetId())
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
	list, more, err := payments.List(ctx, s.cfg.Ledger, auth.MerchantOf(ctx), payments.Query{Note: req.Note, Limit: limit})
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
	a, err := s.cfg.Ledger.Account(ctx, auth.MerchantOf(ctx), req.GetId())
	if err != nil {
		return nil, s.fail(ctx, err)
	}
	return &paymentsv1.GetAccountResponse{Id: a.ID, Balance: a.Balance, Currency: a.Currency}, nil
}
