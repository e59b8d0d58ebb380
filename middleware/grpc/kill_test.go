package idemgrpc_test

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"

	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
)

// Connections break again and again, under handlers that go on. Each call ends
// with the answer of its one execution.
func TestCallsSurviveServersThatStop(t *testing.T) {
	t.Parallel()
	const callers, calls = 4, 25
	b := setup(t)
	b.policy.DuplicateWait = patience // a repeat joins the handler that is still at it
	var mu sync.Mutex
	paid := map[string]string{} // note to ID
	b.wallet.transfer = func(_ context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		time.Sleep(rand.N(3 * time.Millisecond)) // work, of which nobody waits for the end
		mu.Lock()
		defer mu.Unlock()
		id := fmt.Sprint("t", len(paid)+1)
		if first, ok := paid[req.GetNote()]; ok {
			t.Errorf("%s was paid as %s, and again", req.GetNote(), first)
		}
		paid[req.GetNote()] = id
		return &walletv1.TransferResponse{Id: id}, nil
	}
	unary := idemgrpc.MustNew(b.engine, b.policyOf(transferMethod)).Unary()
	var address atomic.Value
	start := func() (stop func()) {
		listener, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Error(err)
			return func() {}
		}
		server := grpc.NewServer(grpc.UnaryInterceptor(unary), grpc.WaitForHandlers(true))
		walletv1.RegisterWalletServiceServer(server, b.wallet)
		address.Store(listener.Addr().String())
		done := make(chan struct{})
		go func() {
			defer close(done)
			_ = server.Serve(listener)
		}()
		return func() {
			server.Stop()
			<-done
		}
	}
	stop := start()
	var stopping sync.WaitGroup
	conn, err := grpc.NewClient("passthrough:///wallet", grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) {
			return new(net.Dialer).DialContext(ctx, "tcp", address.Load().(string))
		}),
		grpc.WithConnectParams(grpc.ConnectParams{Backoff: backoff.Config{BaseDelay: time.Millisecond, Multiplier: 1, MaxDelay: time.Millisecond}, MinConnectTimeout: time.Second}),
		grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(honoured, idemgrpc.WithRetryBackoff(time.Millisecond, 4*time.Millisecond))))
	if err != nil {
		t.Fatal(err)
	}
	client := walletv1.NewWalletServiceClient(conn)
	ctx, cancel := context.WithTimeout(t.Context(), 2*patience)
	defer cancel()

	var wg sync.WaitGroup
	for c := range callers {
		wg.Go(func() {
			for i := range calls {
				note := fmt.Sprintf("%d/%d", c, i)
				resp, err := client.Transfer(ctx, &walletv1.TransferRequest{Note: note})
				mu.Lock()
				want := paid[note]
				mu.Unlock()
				if err != nil || resp.GetId() != want || want == "" {
					t.Errorf("Transfer(%s) = %v, %v, want %s", note, resp, err, want)
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() {
		defer close(finished)
		wg.Wait()
	}()
	restarts := 0
	for over := false; !over; {
		select {
		case <-finished:
			over = true
		case <-time.After(rand.N(8 * time.Millisecond)):
			stopping.Go(stop) // it waits for handlers; nobody else does
			stop = start()
			restarts++
		}
	}
	stop()
	stopping.Wait()
	conn.Close()
	if len(paid) != callers*calls {
		t.Errorf("%d transfers, want %d", len(paid), callers*calls)
	}
	t.Logf("%d restarts", restarts)
}
