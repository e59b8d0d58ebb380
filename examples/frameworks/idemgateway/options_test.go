package idemgateway_test

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/grpc-ecosystem/grpc-gateway/v2/runtime"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/status"
	"google.golang.org/grpc/test/bufconn"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/examples/frameworks/idemgateway"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/idem/telemetry"
	memorylock "github.com/idemkeeper/idemkeeper/lock/memory"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	memorystore "github.com/idemkeeper/idemkeeper/tokenstore/memory"
)

// behind is a gateway whose service has the interceptors of package idemgrpc.
func behind(ctx context.Context, conn *grpc.ClientConn) (http.Handler, error) {
	mux := runtime.NewServeMux(idemgateway.Options()...)
	if err := registerPayments(ctx, mux, conn); err != nil {
		return nil, err
	}
	return mux, nil
}

// inFront protects a gateway whose service ignores keys.
func inFront(ctx context.Context, engine *idem.Engine, conn *grpc.ClientConn) (http.Handler, error) {
	mux := runtime.NewServeMux(runtime.WithErrorHandler(idemgateway.WriteError))
	if err := registerPayments(ctx, mux, conn); err != nil {
		return nil, err
	}
	protect, err := idemhttp.New(engine, idem.Policy{Name: "gateway", Scope: merchant, InDoubt: idem.LeaveUnknown()})
	if err != nil {
		return nil, err
	}
	return protect(mux), nil
}

func merchant(context.Context) (string, error) { return "merchant_demo", nil }

// registerPayments has the shape of a function that protoc-gen-grpc-gateway generates.
func registerPayments(_ context.Context, mux *runtime.ServeMux, conn *grpc.ClientConn) error {
	const path = "/v1/payments"
	client := paymentsv1.NewPaymentServiceClient(conn)
	return mux.HandlePath(http.MethodPost, path, func(w http.ResponseWriter, r *http.Request, _ map[string]string) {
		inbound, outbound := runtime.MarshalerForRequest(mux, r)
		ctx, err := runtime.AnnotateContext(r.Context(), mux, r, paymentsv1.PaymentService_CreatePayment_FullMethodName, runtime.WithHTTPPathPattern(path))
		if err != nil {
			runtime.HTTPError(ctx, mux, outbound, w, r, err)
			return
		}
		var order paymentsv1.CreatePaymentRequest
		if err := inbound.NewDecoder(r.Body).Decode(&order); err != nil && !errors.Is(err, io.EOF) {
			runtime.HTTPError(ctx, mux, outbound, w, r, status.Errorf(codes.InvalidArgument, "%v", err))
			return
		}
		var md runtime.ServerMetadata
		payment, err := client.CreatePayment(ctx, &order, grpc.Header(&md.HeaderMD), grpc.Trailer(&md.TrailerMD))
		ctx = runtime.NewServerMetadataContext(ctx, md)
		if err != nil {
			runtime.HTTPError(ctx, mux, outbound, w, r, err)
			return
		}
		runtime.ForwardResponseMessage(ctx, mux, outbound, w, r, payment, mux.GetForwardResponseOptions()...)
	})
}

// bank is the service. The order's field "to" chooses its answer.
type bank struct {
	paymentsv1.UnimplementedPaymentServiceServer
	runs    atomic.Int64
	started chan struct{} // an order to "slow" runs
	release chan struct{} // and goes on
}

func (b *bank) CreatePayment(_ context.Context, order *paymentsv1.CreatePaymentRequest) (*paymentsv1.Payment, error) {
	b.runs.Add(1)
	switch order.GetTo() {
	case "nobody":
		return nil, status.Error(codes.FailedPrecondition, "insufficient funds")
	case "aborted":
		return nil, status.Error(codes.Aborted, "the bank broke off")
	case "cancelled":
		return nil, status.Error(codes.Canceled, "the bank was cancelled")
	case "relayed": // what a service below has refused
		return nil, idemgrpc.RefusalStatus(idem.NewRefusal(idem.CodeKeyReused, nil)).Err()
	case "slow":
		b.started <- struct{}{}
		<-b.release
	}
	return &paymentsv1.Payment{Id: "pay_1", Amount: order.GetAmount()}, nil
}

func newBank() *bank {
	return &bank{started: make(chan struct{}, 9), release: make(chan struct{})}
}

func newEngine(t *testing.T, opts ...idem.Option) *idem.Engine {
	t.Helper()
	engine, err := idem.New(memorylock.New(), memorystore.New(), opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = engine.Close(context.Background()) })
	return engine
}

// protected serves a bank with the interceptors of package idemgrpc.
func protected(t *testing.T, b *bank, engine *idem.Engine) *grpc.ClientConn {
	t.Helper()
	protect, err := idemgrpc.New(engine, []idem.Policy{{Name: paymentsv1.PaymentService_CreatePayment_FullMethodName, Scope: merchant, InDoubt: idem.LeaveUnknown()}})
	if err != nil {
		t.Fatal(err)
	}
	return serve(t, b, grpc.NewServer(grpc.ChainUnaryInterceptor(protect.Unary())))
}

// serve starts a service and connects to it.
func serve(t *testing.T, b *bank, server *grpc.Server, opts ...grpc.DialOption) *grpc.ClientConn {
	t.Helper()
	paymentsv1.RegisterPaymentServiceServer(server, b)
	listener := bufconn.Listen(1 << 20)
	go func() { _ = server.Serve(listener) }()
	t.Cleanup(server.Stop)
	conn, err := grpc.NewClient("passthrough:///bank", append(opts, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithContextDialer(func(ctx context.Context, _ string) (net.Conn, error) { return listener.DialContext(ctx) }))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = conn.Close() })
	return conn
}

// listen serves a gateway.
func listen(t *testing.T, h http.Handler, err error) string {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
	server := httptest.NewServer(h)
	t.Cleanup(server.Close)
	return server.URL
}

// answer is what a client reads.
type answer struct {
	status     int
	replayed   bool
	retryAfter string
	code       idem.Code // of a problem
	body       string
}

func pay(t *testing.T, client *http.Client, url, to string, keys ...string) (a answer) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, url+"/v1/payments", strings.NewReader(`{"to":"`+to+`","amount":"1250"}`))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/json")
	for _, k := range keys {
		req.Header.Add("Idempotency-Key", k)
	}
	resp, err := client.Do(req)
	if err != nil {
		t.Error(err)
		return a
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Error(err)
	}
	a = answer{resp.StatusCode, resp.Header.Get("Idempotent-Replayed") == "true", resp.Header.Get("Retry-After"), "", string(body)}
	if resp.Header.Get("Content-Type") == "application/problem+json" {
		var p struct {
			Code idem.Code `json:"code"`
		}
		if err := json.Unmarshal(body, &p); err != nil {
			t.Errorf("%s: %v", body, err)
		}
		a.code = p.Code
	}
	return a
}

// The matcher that a mux has by default drops the key.
func TestDefaultMatcherDropsTheKey(t *testing.T) {
	t.Parallel()
	b := newBank()
	mux := runtime.NewServeMux()
	url := listen(t, mux, registerPayments(t.Context(), mux, protected(t, b, newEngine(t))))
	a := pay(t, http.DefaultClient, url, "bob", "k1")
	if a.status != http.StatusBadRequest || !strings.Contains(a.body, "Idempotency-Key is missing") || b.runs.Load() != 0 {
		t.Errorf("answer = %+v after %d runs, want a missing key and no run", a, b.runs.Load())
	}
}

// ways are the two ways to protect a gateway.
var ways = map[string]func(*testing.T, *bank, *idem.Engine) (http.Handler, error){
	"behind": func(t *testing.T, b *bank, engine *idem.Engine) (http.Handler, error) {
		return behind(t.Context(), protected(t, b, engine))
	},
	"in front": func(t *testing.T, b *bank, engine *idem.Engine) (http.Handler, error) {
		return inFront(t.Context(), engine, serve(t, b, grpc.NewServer(), onlyKeys))
	},
}

// onlyKeys is a client interceptor for a service that may ignore keys.
var onlyKeys = grpc.WithUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor())

// Both ways give the answers of package idemhttp.
func TestAnswers(t *testing.T) {
	t.Parallel()
	type row struct {
		to   string
		keys []string
		want answer
		runs int64
	}
	rows := []row{
		{"bob", []string{"paid"}, answer{status: 200}, 1},
		{"bob", []string{"paid"}, answer{status: 200, replayed: true}, 0},
		{"eve", []string{"paid"}, answer{status: 422, code: idem.CodeKeyReused}, 0},
		{"bob", nil, answer{status: 400, code: idem.CodeKeyMissing}, 0},
		{"bob", []string{"one", "two"}, answer{status: 400, code: idem.CodeKeyInvalid}, 0},
		{"nobody", []string{"poor"}, answer{status: 400}, 1},
		{"nobody", []string{"poor"}, answer{status: 400, replayed: true}, 0},
		{"aborted", []string{"aborted"}, answer{status: 500}, 1},
		{"aborted", []string{"aborted"}, answer{status: 409, code: idem.CodeOutcomeUnknown}, 0},
		{"cancelled", []string{"cancelled"}, answer{status: 500}, 1},
		{"cancelled", []string{"cancelled"}, answer{status: 409, code: idem.CodeOutcomeUnknown}, 0},
		{"relayed", []string{"doubt"}, answer{status: 409, code: idem.CodeOutcomeUnknown}, 1},
		{"relayed", []string{"doubt"}, answer{status: 409, code: idem.CodeOutcomeUnknown}, 0},
	}
	for name, start := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			b, engine := newBank(), newEngine(t)
			h, err := start(t, b, engine)
			url := listen(t, h, err)
			for _, tt := range rows {
				before := b.runs.Load()
				got := pay(t, http.DefaultClient, url, tt.to, tt.keys...)
				got.body = ""
				if ran := b.runs.Load() - before; got != tt.want || ran != tt.runs {
					t.Errorf("%s with %q = %+v after %d runs, want %+v after %d", tt.to, tt.keys, got, ran, tt.want, tt.runs)
				}
			}
		})
	}
}

// The client transport of package idemhttp recognises a request that still runs, and waits.
func TestTransportWaits(t *testing.T) {
	t.Parallel()
	for name, start := range ways {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			refused := make(chan struct{}, 9)
			engine := newEngine(t, idem.WithObserver(func(_ context.Context, ev telemetry.Event) {
				if ev.Type == telemetry.EventRefused {
					refused <- struct{}{}
				}
			}))
			b := newBank()
			h, err := start(t, b, engine)
			url := listen(t, h, err)
			first, second := make(chan answer, 1), make(chan answer, 1)
			go func() { first <- pay(t, http.DefaultClient, url, "slow", "k1") }()
			<-b.started
			if a := pay(t, http.DefaultClient, url, "slow", "k1"); a.status != http.StatusConflict || a.code != idem.CodeInProgress || a.retryAfter != "1" {
				t.Errorf("a duplicate = %+v, want in-progress after 1 s", a)
			}
			<-refused
			client := &http.Client{Transport: idemhttp.MustNewTransport(nil, idemhttp.WithKeysHonoured())}
			go func() { second <- pay(t, client, url, "slow", "k1") }()
			<-refused
			close(b.release)
			if a := <-first; a.status != http.StatusOK || a.replayed {
				t.Errorf("the first request = %+v, want its own payment", a)
			}
			if a := <-second; a.status != http.StatusOK || !a.replayed {
				t.Errorf("the transport = %+v, want the replay", a)
			}
			if n := b.runs.Load(); n != 1 {
				t.Errorf("paid %d times, want once", n)
			}
		})
	}
}

// gRPC gives the gateway RESOURCE_EXHAUSTED for a response that is too large, after the payment.
func TestInFrontKeepsTheKeyOfAResponseThatIsTooLarge(t *testing.T) {
	t.Parallel()
	b := newBank()
	conn := serve(t, b, grpc.NewServer(), onlyKeys, grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(1)))
	h, err := inFront(t.Context(), newEngine(t), conn)
	url := listen(t, h, err)
	for range 2 {
		if a := pay(t, http.DefaultClient, url, "bob", "k1"); a.code != idem.CodeOutcomeUnknown {
			t.Errorf("answer = %+v, want an unknown outcome", a)
		}
	}
	if n := b.runs.Load(); n != 1 {
		t.Errorf("paid %d times, want once", n)
	}
}
