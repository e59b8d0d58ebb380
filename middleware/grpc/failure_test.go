package idemgrpc_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

func TestHandlerOutlivesTheDeadlineOfItsClient(t *testing.T) {
	t.Parallel()
	for limit, started := 20*time.Millisecond, false; !started; limit *= 2 { // on a slow machine it passes early
		started = outlivesItsClient(t, limit)
	}
}

// outlivesItsClient runs a handler whose client leaves. It is false where the client
// left before the handler started.
func outlivesItsClient(t *testing.T, limit time.Duration) bool {
	t.Helper()
	b := setup(t)
	b.policy.DuplicateWait = patience // so that a repeat waits for the handler to end
	calls, seen := make(chan context.Context, 2), make(chan error, 2)
	gone := make(chan struct{})
	letGo := sync.OnceFunc(func() { close(gone) })
	defer letGo()
	b.before = []grpc.UnaryServerInterceptor{func(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
		calls <- ctx
		return next(ctx, req)
	}}
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		<-gone
		if _, ok := ctx.Deadline(); ok {
			t.Error("the client's deadline is the handler's")
		}
		seen <- ctx.Err()
		return &walletv1.TransferResponse{Id: "t1", Amount: 1250}, nil
	}
	b.start()
	ctx, cancel := context.WithTimeout(b.withKeys("k1"), limit)
	defer cancel()
	done := make(chan answer, 1)
	go func() { done <- b.send(ctx, usual()) }()
	a := receive(t, "an answer", done)
	if status.Code(a.err) != codes.DeadlineExceeded {
		t.Fatalf("Transfer() = %v, want a client that has left", a.err)
	}
	if b.wallet.runs.Load() == 0 {
		return false
	}
	outer := receive(t, "a call", calls)
	<-outer.Done() // the server knows, too
	letGo()
	if err := receive(t, "the handler", seen); err != nil {
		t.Errorf("the handler's context ended: %v", err)
	}
	b.wantPaid(b.pay("k1"), true)
	b.wantRuns(1)
	return true
}

func TestDeadlineOfThePolicyCancelsAndSettlesAfterTheHandler(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.HandlerTimeout = time.Millisecond
	b.wallet.transfer = func(ctx context.Context, _ *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		<-ctx.Done()
		return nil, ctx.Err()
	}
	b.wallet.payout = func(_ *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
		<-s.Context().Done()
		return s.Context().Err()
	}
	b.start()
	a, s := b.pay("k1"), b.payout(b.withKeys("k2"), 0)
	b.wantCode(a.err, codes.DeadlineExceeded)
	b.wantCode(s.err, codes.DeadlineExceeded)
	b.wantState("k1", driver.StateUnknown)
	b.wantState("k2", driver.StateUnknown)
	a, s = b.pay("k1"), b.payout(b.withKeys("k2"), 0)
	b.wantDoubt(a.err, a.trailer, "k1", 0)
	b.wantDoubt(s.err, s.trailer, "k2", 0)
	b.wantRuns(2)
}

func TestHandlerThatIgnoresTheDeadlineIsWaitedFor(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.HandlerTimeout = time.Millisecond
	b.wallet.transfer = func(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		<-ctx.Done()
		return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, nil
	}
	b.start()
	b.wantPaid(b.pay("k1"), false)
	b.wantPaid(b.pay("k1"), true)
	b.wantRuns(1)
}

func TestDuplicatesWait(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.DuplicateWait = patience
	release := make(chan struct{})
	b.wallet.transfer = func(_ context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		<-release
		return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, nil
	}
	b.start()
	answers := make(chan answer, 4)
	for range cap(answers) {
		go func() { answers <- b.pay("k1") }()
	}
	b.eventually("duplicates wait", func() bool {
		b.mu.Lock()
		defer b.mu.Unlock()
		n := 0
		for _, ev := range b.events {
			if ev.Type == telemetry.EventJoined || ev.Type == telemetry.EventWaited {
				n++
			}
		}
		return n >= cap(answers)-1
	})
	close(release)
	live := 0
	for range cap(answers) {
		a := receive(t, "an answer", answers)
		b.wantPaid(a, a.replayed())
		if !a.replayed() {
			live++
		}
	}
	if live != 1 {
		t.Errorf("%d answers are live, want 1", live)
	}
	b.wantRuns(1)
}

func TestFailOpen(t *testing.T) {
	t.Parallel()
	b := setup(t)
	b.policy.FailOpen = true
	b.start()
	b.failStore(errDown)
	b.wantPaid(b.pay("k1"), false)
	b.wantPaid(b.pay("k1"), false)
	b.wantNumbers(b.payout(b.withKeys("k2"), 2), 2, false)
	b.wantRuns(3)
	b.failStore(errors.Join(driver.ErrStoreLost))
	a := b.pay("k1")
	b.wantRefusal(a.err, a.trailer, idem.CodeStoreLost)
}
