package grpctest

import (
	"context"
	"net"
	"sync/atomic"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// Adapter is an adapter under test.
type Adapter struct {
	// Protect returns the options of a server that runs its methods through the engine.
	Protect func(engine *idem.Engine, o Options) ([]grpc.ServerOption, error)
}

// Options say what is protected.
type Options struct {
	// Policy protects every method of the application, described by generated code or not. It
	// leaves out streams of requests, and the services of gRPC itself.
	Policy idem.Policy
	// Replay names metadata that is stored and replayed.
	Replay []string
	// OptionalKey names the methods that take calls without a key, as "/package.Service/Method" or
	// "/package.Service/*".
	OptionalKey []string
}

// testCase is one behaviour. The bundle is the case's own.
type testCase struct {
	name string
	run  func(b *bundle)
}

// Run runs every case, in parallel.
func Run(t *testing.T, a Adapter) {
	for _, group := range []struct {
		name  string
		cases []testCase
	}{
		{"replay", replayCases}, {"refuse", refusalCases}, {"doubt", doubtCases}, {"settle", settleCases}, {"joined", joinedCases}, {"without a key", keylessCases}, {"services", serviceCases},
	} {
		for _, c := range group.cases {
			t.Run(group.name+"/"+c.name, func(t *testing.T) {
				t.Parallel()
				c.run(setup(t, a))
			})
		}
	}
}

// patience bounds the waits of a case. Reaching it is a failure.
const patience = 30 * time.Second

// bundle is an engine on in-process parts, behind a server and a client.
type bundle struct {
	*testing.T
	adapter Adapter
	engine  *idem.Engine
	locker  *idemtest.FaultyLocker
	store   *idemtest.FaultyStore
	records *memorystore.Store // in store
	options Options
	outside []grpc.ServerOption // interceptors around the adapter
	wallet  wallet
	client  walletv1.WalletServiceClient
}

func setup(t *testing.T, a Adapter) *bundle {
	t.Helper()
	b := &bundle{T: t, adapter: a, records: memorystore.New()}
	b.locker, b.store = idemtest.NewFaultyLocker(memorylock.New()), idemtest.NewFaultyStore(b.records)
	engine, err := idem.New(b.locker, b.store)
	if err != nil {
		t.Fatalf("idem.New() = %v", err)
	}
	b.engine = engine
	b.options.Policy = idem.Policy{Scope: func(context.Context) (string, error) { return "merchant", nil }, InDoubt: idem.LeaveUnknown()}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return b
}

// start serves the wallet inside the adapter.
func (b *bundle) start() {
	b.Helper()
	server := b.newServer()
	walletv1.RegisterWalletServiceServer(server, &b.wallet)
	b.client = walletv1.NewWalletServiceClient(b.serve(server))
}

func (b *bundle) newServer() *grpc.Server {
	b.Helper()
	opts, err := b.adapter.Protect(b.engine, b.options)
	if err != nil {
		b.Fatalf("Protect() = %v", err)
	}
	return grpc.NewServer(append(append([]grpc.ServerOption{grpc.WaitForHandlers(true)}, b.outside...), opts...)...)
}

// serve listens and connects.
func (b *bundle) serve(server *grpc.Server) *grpc.ClientConn {
	b.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	conn, err := grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatalf("NewClient() = %v", err)
	}
	b.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			b.Errorf("Serve() = %v", err)
		}
	})
	return conn
}

// wallet is a server whose methods each case brings along.
type wallet struct {
	walletv1.UnimplementedWalletServiceServer
	transfer func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error)
	payout   func(*walletv1.PayoutRequest, grpc.ServerStreamingServer[walletv1.PayoutResponse]) error
	runs     atomic.Int64
}

func (w *wallet) Transfer(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
	w.runs.Add(1)
	if w.transfer != nil {
		return w.transfer(ctx, req)
	}
	return paid(req), nil
}

func paid(req *walletv1.TransferRequest) *walletv1.TransferResponse {
	return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}
}

func (w *wallet) Payout(req *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
	w.runs.Add(1)
	if w.payout != nil {
		return w.payout(req, s)
	}
	return sendNumbers(s, req.GetCount())
}

func sendNumbers(s grpc.ServerStreamingServer[walletv1.PayoutResponse], n int32) error {
	for i := range n {
		if err := s.Send(&walletv1.PayoutResponse{Number: i + 1}); err != nil {
			return err
		}
	}
	return nil
}

// Upload counts what it gets.
func (w *wallet) Upload(s grpc.ClientStreamingServer[walletv1.UploadRequest, walletv1.UploadResponse]) error {
	w.runs.Add(1)
	for n := int32(0); ; n++ {
		if _, err := s.Recv(); err != nil {
			return s.SendAndClose(&walletv1.UploadResponse{Count: n})
		}
	}
}

// withKeys is a context whose calls carry keys.
func (b *bundle) withKeys(keys ...string) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.Cleanup(cancel)
	md := metadata.MD{}
	md.Append("idempotency-key", keys...)
	return metadata.NewOutgoingContext(ctx, md)
}
