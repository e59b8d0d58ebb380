package main

import (
	"context"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
)

// onGRPC makes a call with a key as merchant_demo, and waits for a server that is not
// there yet.
func onGRPC[T any](p *process, key string, call func(context.Context, paymentsv1.PaymentServiceClient) (T, error)) (res T, err error) {
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return res, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	ctx = metadata.AppendToOutgoingContext(ctx, "authorization", "Bearer demo", "idempotency-key", key)
	return call(ctx, paymentsv1.NewPaymentServiceClient(conn))
}

// call pays.
func (p *process) call(key string) (*paymentsv1.Payment, error) {
	return onGRPC(p, key, func(ctx context.Context, c paymentsv1.PaymentServiceClient) (*paymentsv1.Payment, error) {
		return c.CreatePayment(ctx, &paymentsv1.CreatePaymentRequest{From: "alice", To: "bob", Amount: 1250, Currency: "USD", Note: "n"})
	})
}

// issue makes a token.
func (p *process) issue() (*paymentsv1.IssueTokenResponse, error) {
	return onGRPC(p, "", func(ctx context.Context, c paymentsv1.PaymentServiceClient) (*paymentsv1.IssueTokenResponse, error) {
		return c.IssueToken(ctx, &paymentsv1.IssueTokenRequest{})
	})
}

// trade pays with a token.
func (p *process) trade(token string, amount int64) (*paymentsv1.Payment, error) {
	return onGRPC(p, token, func(ctx context.Context, c paymentsv1.PaymentServiceClient) (*paymentsv1.Payment, error) {
		return c.CreateTrade(ctx, &paymentsv1.CreateTradeRequest{From: "alice", To: "bob", Amount: amount, Currency: "USD", Note: "n"})
	})
}
