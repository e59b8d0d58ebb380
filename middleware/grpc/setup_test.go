package idemgrpc_test

import (
	"context"
	"errors"
	"net"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	"github.com/idemkeeper/idemkeeper/idem/idemtest"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	walletv1 "github.com/idemkeeper/idemkeeper/middleware/grpc/internal/testproto/wallet/v1"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; reaching it is a failure.
const patience = 30 * time.Second

const (
	transferMethod = "/wallet.v1.WalletService/Transfer"
	balanceMethod  = "/wallet.v1.WalletService/GetBalance"
	payoutMethod   = "/wallet.v1.WalletService/Payout"
	uploadMethod   = "/wallet.v1.WalletService/Upload"
	chatMethod     = "/wallet.v1.WalletService/Chat"
)

// wallet is a server whose methods each test brings along.
type wallet struct {
	walletv1.UnimplementedWalletServiceServer
	transfer func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error)
	payout   func(*walletv1.PayoutRequest, grpc.ServerStreamingServer[walletv1.PayoutResponse]) error
	runs     atomic.Int64
}

func (w *wallet) Transfer(ctx context.Context, req *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
	w.runs.Add(1)
	if w.transfer == nil {
		return &walletv1.TransferResponse{Id: "t1", Amount: req.GetAmount()}, nil
	}
	return w.transfer(ctx, req)
}

func (w *wallet) GetBalance(context.Context, *walletv1.GetBalanceRequest) (*walletv1.GetBalanceResponse, error) {
	w.runs.Add(1)
	return &walletv1.GetBalanceResponse{Balance: 7}, nil
}

func (w *wallet) Payout(req *walletv1.PayoutRequest, s grpc.ServerStreamingServer[walletv1.PayoutResponse]) error {
	w.runs.Add(1)
	if w.payout == nil {
		return sendNumbers(s, req.GetCount())
	}
	return w.payout(req, s)
}

func sendNumbers(s grpc.ServerStreamingServer[walletv1.PayoutResponse], n int32) error {
	for i := range n {
		if err := s.Send(&walletv1.PayoutResponse{Number: i + 1}); err != nil {
			return err
		}
	}
	return nil
}

func (w *wallet) Upload(s grpc.ClientStreamingServer[walletv1.UploadRequest, walletv1.UploadResponse]) error {
	w.runs.Add(1)
	n := int32(0)
	for {
		if _, err := s.Recv(); err != nil {
			return s.SendAndClose(&walletv1.UploadResponse{Count: n})
		}
		n++
	}
}

func (w *wallet) Chat(s grpc.BidiStreamingServer[walletv1.ChatRequest, walletv1.ChatResponse]) error {
	w.runs.Add(1)
	for {
		req, err := s.Recv()
		if err != nil {
			return nil //nolint:nilerr // the client has said all
		}
		if err := s.Send(&walletv1.ChatResponse{Text: req.GetText()}); err != nil {
			return err
		}
	}
}

// bundle is an engine on in-process parts, behind a real server and client.
type bundle struct {
	testing.TB
	engine       *idem.Engine
	locker       *idemtest.FaultyLocker
	lock         *memorylock.Locker // in locker
	store        *idemtest.FaultyStore
	records      *memorystore.Store // in store
	policy       idem.Policy
	policies     []idem.Policy
	cfg          idemgrpc.Config
	before       []grpc.UnaryServerInterceptor // outside of ours
	beforeStream []grpc.StreamServerInterceptor
	wallet       *wallet
	dial         []grpc.DialOption
	later        atomic.Int64 // nanoseconds that the store's clock is ahead

	server *grpc.Server
	conn   *grpc.ClientConn
	client walletv1.WalletServiceClient

	mu     sync.Mutex
	events []telemetry.Event
}

func setup(t testing.TB) *bundle {
	t.Helper()
	b := &bundle{TB: t, lock: memorylock.New(), wallet: &wallet{}}
	clock := func() time.Time { return time.Now().Add(time.Duration(b.later.Load())) }
	b.records = memorystore.New(memorystore.WithClock(clock))
	b.locker, b.store = idemtest.NewFaultyLocker(b.lock), idemtest.NewFaultyStore(b.records)
	engine, err := idem.New(b.locker, b.store, idem.WithObserver(b.observe))
	if err != nil {
		t.Fatalf("idem.New() = %v", err)
	}
	b.engine = engine
	b.policy = idem.Policy{Scope: func(context.Context) (string, error) { return "merchant", nil }, InDoubt: idem.LeaveUnknown()}
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		if err := engine.Close(ctx); err != nil {
			t.Errorf("Close() = %v", err)
		}
	})
	return b
}

func (b *bundle) observe(_ context.Context, ev telemetry.Event) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.events = append(b.events, ev)
}

// policyOf names the bundle's policy, one for each method.
func (b *bundle) policyOf(methods ...string) []idem.Policy { return named(b.policy, methods...) }

// named are policies like p, one for each method.
func named(p idem.Policy, methods ...string) (policies []idem.Policy) {
	for _, m := range methods {
		p.Name = m
		policies = append(policies, p)
	}
	return policies
}

// start serves, with the bundle's policy for both methods that can have one
// unless the test has set policies.
func (b *bundle) start() *bundle {
	b.Helper()
	if b.policies == nil {
		b.policies = b.policyOf(transferMethod, payoutMethod)
	}
	x, err := idemgrpc.New(b.engine, b.policies, b.cfg)
	if err != nil {
		b.Fatalf("New() = %v", err)
	}
	b.server = grpc.NewServer(
		grpc.WaitForHandlers(true),
		grpc.ChainUnaryInterceptor(append(b.before, x.Unary())...),
		grpc.ChainStreamInterceptor(append(b.beforeStream, x.Stream())...),
	)
	walletv1.RegisterWalletServiceServer(b.server, b.wallet)
	b.conn = serve(b.TB, b.server, b.dial...)
	b.client = walletv1.NewWalletServiceClient(b.conn)
	return b
}

// serve starts a server on a listener in memory and connects to it.
func serve(t testing.TB, server *grpc.Server, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	listener := bufconn.Listen(1 << 20)
	done := make(chan error, 1)
	go func() { done <- server.Serve(listener) }()
	opts = append([]grpc.DialOption{
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }),
	}, opts...)
	conn, err := grpc.NewClient("passthrough:///wallet", opts...)
	if err != nil {
		t.Fatalf("NewClient() = %v", err)
	}
	t.Cleanup(func() {
		conn.Close()
		server.Stop()
		if err := <-done; err != nil {
			t.Errorf("Serve() = %v", err)
		}
	})
	return conn
}

// answer is a unary call as the client got it.
type answer struct {
	response        *walletv1.TransferResponse
	err             error
	header, trailer metadata.MD
}

func (a answer) replayed() bool {
	return slices.Equal(a.header.Get("idempotent-replayed"), []string{"true"})
}

// withKeys is a context whose calls carry keys.
func (b *bundle) withKeys(keys ...string) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	b.Cleanup(cancel)
	md := metadata.MD{}
	md.Append("idempotency-key", keys...)
	return metadata.NewOutgoingContext(ctx, md)
}

// answers makes a method that answers with what it is given.
func answers(response *walletv1.TransferResponse, err error) func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
	return func(context.Context, *walletv1.TransferRequest) (*walletv1.TransferResponse, error) {
		return response, err
	}
}

func usual() *walletv1.TransferRequest {
	return &walletv1.TransferRequest{To: "bob", Amount: 1250}
}

// pay sends the usual request.
func (b *bundle) pay(keys ...string) answer { return b.send(b.withKeys(keys...), usual()) }

func (b *bundle) send(ctx context.Context, req *walletv1.TransferRequest) (a answer) {
	a.response, a.err = b.client.Transfer(ctx, req, grpc.Header(&a.header), grpc.Trailer(&a.trailer))
	return a
}

func (b *bundle) wantPaid(a answer, replayed bool) {
	b.Helper()
	if a.err != nil || a.response.GetId() != "t1" || a.response.GetAmount() != 1250 || a.replayed() != replayed {
		b.Fatalf("Transfer() = %v, %v (replayed %v), want t1 of 1250 (replayed %v)", a.response, a.err, a.replayed(), replayed)
	}
}

func (b *bundle) wantCode(err error, want codes.Code) {
	b.Helper()
	if got := status.Code(err); got != want {
		b.Fatalf("error = %v, want %v", err, want)
	}
}

func (b *bundle) wantRuns(n int64) {
	b.Helper()
	if got := b.wallet.runs.Load(); got != n {
		b.Fatalf("handler ran %d times, want %d", got, n)
	}
}

func (b *bundle) wantState(key string, want driver.State) {
	b.Helper()
	got, err := b.engine.Status(context.Background(), "merchant", idem.Key(key))
	if err != nil || got.State != want {
		b.Fatalf("Status(%q) = %v, %v, want %v", key, got.State, err, want)
	}
}

// wantRefusal checks that a call was refused. The suite checks all that a refusal carries.
func (b *bundle) wantRefusal(err error, code idem.Code) {
	b.Helper()
	if got, ok := idemgrpc.CodeOf(err); !ok || got != code || status.Code(err) != codes.Code(code.GRPCCode()) {
		b.Fatalf("error = %v, want a refusal as %s", err, code)
	}
}

// wantNothing checks that no record was made.
func (b *bundle) wantNothing() {
	b.Helper()
	b.wantRuns(0)
	if n := b.records.Len(); n != 0 {
		b.Fatalf("%d records, want none", n)
	}
}

// eventually waits for a condition.
func (b *bundle) eventually(what string, ok func() bool) {
	b.Helper()
	deadline := time.Now().Add(patience)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Now().After(deadline) {
			b.Fatalf("never happened: %s", what)
		}
		<-tick.C
	}
}

// receive waits for a signal.
func receive[T any](t testing.TB, what string, c <-chan T) (v T) {
	t.Helper()
	select {
	case v = <-c:
	case <-time.After(patience):
		t.Fatalf("never happened: %s", what)
	}
	return v
}

// operator settles the attempt of an execution from outside.
func (b *bundle) operator(ctx context.Context, s driver.Settlement) {
	x, _ := idem.FromContext(ctx)
	rec, err := b.store.Get(context.Background(), x.KeyID)
	s.Attempt, s.ID, s.ResultTTL, s.KeyTTL = rec.Attempt, driver.NewNonce(), time.Hour, time.Hour
	s.Decision = driver.Decision{By: "operator"}
	if err == nil {
		_, err = b.store.Settle(context.Background(), x.KeyID, s)
	}
	if err != nil {
		b.Errorf("settling from outside: %v", err)
	}
}

var errDown = errors.Join(driver.ErrUnavailable, errors.New("secret-host:6379: connection refused"))

// failStore makes the store refuse to read.
func (b *bundle) failStore(err error) { b.store.FailBefore("Get", idemtest.Every, err) }
