package main

import (
	"context"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

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

func TestRunningCallIsFinishedBeforeTheEnd(t *testing.T) {
	t.Parallel()
	p := serve(t, "--processor-latency", "1s", "--log-level", "debug")
	paid := make(chan error, 1)
	go func() {
		_, err := p.call("k")
		paid <- err
	}()
	p.await(&p.stderr, "at=before-ledger")
	p.term()
	if err := <-paid; err != nil {
		t.Errorf("payment that ran at SIGTERM: %v", err)
	}
	if code := p.exit(10 * time.Second); code != 0 {
		t.Errorf("exit code %d, want 0", code)
	}
	p.await(&p.stderr, "at=answered")
}

// An instance is killed after it has paid. The other one looks the payment up, answers
// like the first would have, and refuses the key over HTTP.
func TestKilledInstanceOverGRPC(t *testing.T) {
	t.Parallel()
	flags := sharedFlags(t, "redis")
	victim := serve(t, append(flags, "--processor-latency", "2s")...)
	gone := make(chan error, 1)
	go func() {
		_, err := victim.call("k")
		gone <- err
	}()
	victim.await(&victim.stderr, "at=after-ledger")
	victim.kill()
	if err := <-gone; status.Code(err) != codes.Unavailable {
		t.Fatalf("call to the instance that was killed: %v, want UNAVAILABLE", err)
	}
	heir := serve(t, flags...)
	first, err := heir.call("k")
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); first, err = heir.call("k") {
		if c := status.Code(err); c != codes.Aborted && c != codes.Unavailable {
			break
		}
	}
	again, err2 := heir.call("k")
	if err != nil || err2 != nil || !proto.Equal(first, again) || first.GetStatus() != "succeeded" {
		t.Errorf("repeats: %v, %v, %v, %v, want one payment", first, err, again, err2)
	}
	if status, body, err := heir.request("POST", "/v1/payments", "k", orderBody); status != 422 {
		t.Errorf("the key over HTTP: %d %s %v, want 422", status, body, err)
	}
	heir.wantPayments(1)
}
