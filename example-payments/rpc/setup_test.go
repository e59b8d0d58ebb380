package rpc_test

import (
	"context"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/idemkeeper/idemkeeper/example-payments/ledger"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/example-payments/rpc"
	"github.com/idemkeeper/idemkeeper/example-payments/server"
	"github.com/idemkeeper/idemkeeper/example-payments/telemetry"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/driver"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// fixture is an instance with both transports, and a client of each.
type fixture struct {
	t        *testing.T
	engine   *idem.Engine
	ledger   *hooked
	server   *rpc.Server
	conn     *grpc.ClientConn
	client   paymentsv1.PaymentServiceClient
	http     *httptest.Server
	measured *telemetry.Telemetry
}

// setup starts an instance. change may alter the Config of its gRPC half first.
func setup(t *testing.T, change ...func(*fixture, *rpc.Config)) *fixture {
	t.Helper()
	l, err := ledger.Open(t.Context(), "", ledger.Exclusive)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := l.Audit(context.Background()); err != nil {
			t.Error(err)
		}
		if err := l.Close(); err != nil {
			t.Error(err)
		}
	})
	for _, m := range []string{"merchant_demo", "merchant_test"} {
		if err := l.AddMerchant(t.Context(), m); err != nil {
			t.Fatal(err)
		}
	}
	keys, err := payments.ParseAPIKeys("demo=merchant_demo,test=merchant_test")
	if err != nil {
		t.Fatal(err)
	}
	store := memorystore.New()
	f := &fixture{t: t, ledger: &hooked{Ledger: l}}
	log := slog.New(slog.DiscardHandler)
	if f.measured, err = telemetry.New(t.Context(), log); err != nil {
		t.Fatal(err)
	}
	if f.engine, err = idem.New(memorylock.New(), store, f.measured.Observer.Engine()); err != nil {
		t.Fatal(err)
	}
	service := &payments.Service{Ledger: f.ledger, Log: log}
	resolver := payments.LedgerResolver(f.ledger, false, func(route string, p payments.Payment) (idem.Response, error) {
		if rpc.Owns(route) {
			return rpc.Answer(p)
		}
		return server.Answer(p)
	})
	handler, err := server.New(server.Config{Engine: f.engine, Service: service, Ledger: f.ledger, Keys: keys,
		Telemetry: f.measured, Log: log, Resolver: resolver})
	if err != nil {
		t.Fatal(err)
	}
	cfg := rpc.Config{Engine: f.engine, Service: service, Ledger: f.ledger, Keys: keys, Telemetry: f.measured, Log: log, Resolver: resolver}
	for _, c := range change {
		c(f, &cfg)
	}
	if f.server, err = rpc.New(cfg); err != nil {
		t.Fatal(err)
	}
	f.http = httptest.NewServer(handler)
	f.serve()
	return f
}

// serve serves gRPC on a free port until the clean-up, and dials it.
func (f *fixture) serve() {
	t := f.t
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- f.server.Serve(listener) }()
	if f.conn, err = grpc.NewClient(listener.Addr().String(), grpc.WithTransportCredentials(insecure.NewCredentials())); err != nil {
		t.Fatal(err)
	}
	f.client = paymentsv1.NewPaymentServiceClient(f.conn)
	t.Cleanup(func() {
		if err := f.conn.Close(); err != nil {
			t.Error(err)
		}
		f.http.Client().CloseIdleConnections()
		f.http.Close()
		ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
		defer cancel()
		if err := f.server.Shutdown(ctx); err != nil {
			t.Error(err)
		}
		if err := <-served; err != nil {
			t.Error(err)
		}
		if err := f.engine.Close(ctx); err != nil {
			t.Error(err)
		}
	})
}

// hooked is a ledger with places to break it. Set its hooks before it is used.
type hooked struct {
	payments.Ledger
	before func(context.Context) error // an error: nothing is paid
	after  func(context.Context) error // an error: paid, but not told so
	ping   func(context.Context) error
}

func (h *hooked) Pay(ctx context.Context, merchant string, p payments.Payment, f driver.Fence) error {
	if h.before != nil {
		if err := h.before(ctx); err != nil {
			return err
		}
	}
	if err := h.Ledger.Pay(ctx, merchant, p, f); err != nil || h.after == nil {
		return err
	}
	return h.after(ctx)
}

func (h *hooked) Ping(ctx context.Context) error {
	if h.ping != nil {
		return h.ping(ctx)
	}
	return h.Ledger.Ping(ctx)
}

// as is the context of a call with an API key and, unless it is "", a key.
func as(token, key string) context.Context {
	pairs := []string{"authorization", "Bearer " + token}
	if key != "" {
		pairs = append(pairs, "idempotency-key", key)
	}
	return metadata.AppendToOutgoingContext(context.Background(), pairs...)
}

func order() *paymentsv1.CreatePaymentRequest {
	return &paymentsv1.CreatePaymentRequest{From: "alice", To: "bob", Amount: 1250, Currency: "USD", Note: "n"}
}

func tradeOrder() *paymentsv1.CreateTradeRequest {
	return &paymentsv1.CreateTradeRequest{From: "alice", To: "bob", Amount: 1250, Currency: "USD", Note: "n"}
}

// answer is the result of a call.
type answer struct {
	payment  *paymentsv1.Payment
	err      error
	replayed bool
}

func (f *fixture) pay(key string, req *paymentsv1.CreatePaymentRequest) answer {
	return called(key, func(ctx context.Context, header *metadata.MD) (*paymentsv1.Payment, error) {
		return f.client.CreatePayment(ctx, req, grpc.Header(header))
	})
}

func (f *fixture) trade(key string, req *paymentsv1.CreateTradeRequest) answer {
	return called(key, func(ctx context.Context, header *metadata.MD) (*paymentsv1.Payment, error) {
		return f.client.CreateTrade(ctx, req, grpc.Header(header))
	})
}

func called(key string, do func(context.Context, *metadata.MD) (*paymentsv1.Payment, error)) answer {
	ctx, cancel := context.WithTimeout(as("demo", key), 20*time.Second)
	defer cancel()
	var header metadata.MD
	p, err := do(ctx, &header)
	got := header.Get("idempotent-replayed")
	return answer{p, err, len(got) == 1 && got[0] == "true"}
}

// wantStatus fails the test unless the call was answered with the code and, beside
// OK, the reason.
func wantStatus(t *testing.T, what string, err error, code codes.Code, reason string) {
	t.Helper()
	got, info := status.Convert(err), ""
	for _, d := range got.Details() {
		if x, ok := d.(*errdetails.ErrorInfo); ok {
			info = x.GetReason()
		}
	}
	if got.Code() != code || info != reason {
		t.Errorf("%s: %v %s (%s), want %v %s", what, got.Code(), info, got.Message(), code, reason)
	}
}

const orderBody = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"n"}`

// over sends a request over HTTP and returns status and body.
func (f *fixture) over(method, path, key, body string) (int, string) {
	f.t.Helper()
	req, err := http.NewRequestWithContext(f.t.Context(), method, f.http.URL+path, strings.NewReader(body))
	if err != nil {
		f.t.Fatal(err)
	}
	req.Header.Set("Authorization", "Bearer demo")
	if key != "" {
		req.Header.Set("Idempotency-Key", key)
	}
	res, err := f.http.Client().Do(req)
	if err != nil {
		f.t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		f.t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// wantState asks for the key's state, over HTTP.
func (f *fixture) wantState(key, state string) {
	f.t.Helper()
	if _, got := f.over("GET", "/v1/idempotency", key, ""); !strings.Contains(got, `"state":"`+state+`"`) {
		f.t.Errorf("state of %s: %s, want %s", key, got, state)
	}
}

func (f *fixture) wantPayments(n int) {
	f.t.Helper()
	list, err := f.client.ListPayments(as("demo", ""), &paymentsv1.ListPaymentsRequest{})
	if err != nil || len(list.GetPayments()) != n {
		f.t.Errorf("payments %v, %v, want %d", list, err, n)
	}
}
