package idemgrpc_test

import (
	"context"
	"errors"
	"fmt"
	"net"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/idemkeeper/idemkeeper/idem"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

type merchantKey struct{}

// authenticate stands for whatever tells the server who calls.
func authenticate(ctx context.Context, req any, _ *grpc.UnaryServerInfo, next grpc.UnaryHandler) (any, error) {
	return next(context.WithValue(ctx, merchantKey{}, "merchant_demo"), req)
}

func merchantOf(ctx context.Context) (string, error) {
	if m, ok := ctx.Value(merchantKey{}).(string); ok {
		return m, nil
	}
	return "", errors.New("no merchant")
}

func Example() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	interceptors, err := idemgrpc.New(engine,
		[]idem.Policy{{Name: "/wallet.v1.WalletService/Transfer", Scope: merchantOf, InDoubt: idem.LeaveUnknown()}})
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, interceptors.Unary()), grpc.StreamInterceptor(interceptors.Stream()))
	transfers := 0
	walletv1.RegisterWalletServiceServer(server, &wallet{transfer: func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		transfers++
		return &walletv1.TransferResponse{Id: fmt.Sprint("transfer ", transfers)}, nil
	}})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()

	// The client interceptor makes keys and retries; here the key is the
	// caller's own, to show a repeat.
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(idemgrpc.WithKeysHonoured())))
	if err != nil {
		panic(err)
	}
	client := walletv1.NewWalletServiceClient(conn)
	ctx := metadata.AppendToOutgoingContext(context.Background(), "idempotency-key", "order-4711")
	for range 2 {
		var header metadata.MD
		resp, err := client.Transfer(ctx, &walletv1.TransferRequest{To: "bob", Amount: 1250}, grpc.Header(&header))
		fmt.Println(resp.GetId(), err, header.Get("idempotent-replayed"))
	}
	_, err = client.Transfer(ctx, &walletv1.TransferRequest{To: "bob", Amount: 9999})
	code, _ := idemgrpc.CodeOf(err)
	fmt.Println(code)

	_ = conn.Close()
	server.GracefulStop()
	<-done
	_ = engine.Close(context.Background())
	// Output:
	// transfer 1 <nil> []
	// transfer 1 <nil> [true]
	// key-reused
}

func ExampleOutcome() {
	ledger := map[string]*walletv1.TransferResponse{"op_1": {Id: "transfer 1"}} // by operation ID
	policy := idem.Policy{
		Scope: merchantOf,
		InDoubt: idem.AskResolver(func(_ context.Context, in idem.Interrupted) (idem.Resolution, error) {
			transfer, ok := ledger[in.OperationID] // a real one raises the fence first: see idem.Resolver
			if !ok {
				return idem.NotApplied(), nil
			}
			r, err := idemgrpc.Outcome(nil, transfer)
			return idem.Applied(r), err
		}),
	}
	_, err := policy.InDoubt.Resolver()(context.Background(), idem.Interrupted{OperationID: "op_1"})
	fmt.Println(err)
	// Output:
	// <nil>
}

// The status service tells by the policies of New which methods resolve their doubts.
func ExampleRegisterStatusServer() {
	engine, err := idem.New(memorylock.New(), memorystore.New())
	if err != nil {
		panic(err)
	}
	policies := []idem.Policy{{Name: "/wallet.v1.WalletService/Transfer", Scope: merchantOf, InDoubt: idem.LeaveUnknown()}}
	interceptors, err := idemgrpc.New(engine, policies)
	if err != nil {
		panic(err)
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, interceptors.Unary()))
	err = idemgrpc.RegisterStatusServer(server, engine, idem.Policy{Scope: merchantOf, InDoubt: idem.LeaveUnknown()}, idemgrpc.Config{StatusPolicies: policies})
	if err != nil {
		panic(err)
	}
	for name := range server.GetServiceInfo() {
		fmt.Println(name)
	}
	// Output: idemkeeper.v1.Idempotency
}

// A client makes one key for each call, and sends the call again with it where that is safe and may
// help.
func ExampleMustUnaryClientInterceptor() {
	conn, err := grpc.NewClient("payments.example:443", grpc.WithTransportCredentials(insecure.NewCredentials()), // or TLS
		grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(idemgrpc.WithKeysHonoured())))
	if err != nil {
		panic(err)
	}
	defer conn.Close()
	client := walletv1.NewWalletServiceClient(conn)
	_ = client // client.Transfer(ctx, request)
	// Output:
}
