package tests

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// handler is one of the test's own. It returns the ID of a payment, or false
// where it does not know whether it has paid.
type handler func(ctx context.Context) (id string, known bool)

// doubtful reports whether the answer is that of a handler which does not know.
func (a answer) doubtful() bool {
	return a.err == nil && (a.status == http.StatusGatewayTimeout || a.rpc != nil && a.rpc.Code() == codes.Unknown)
}

// serve puts a handler behind the middleware of a transport and a real listener.
func serve(t *testing.T, via transport, e *idem.Engine, p idem.Policy, h handler) client {
	t.Helper()
	if via == (overGRPC{}) {
		return serveGRPC(t, e, p, h)
	}
	return serveHTTP(t, e, p, func(w http.ResponseWriter, r *http.Request) {
		id, known := h(r.Context())
		if !known {
			w.WriteHeader(http.StatusGatewayTimeout)
			return
		}
		w.WriteHeader(http.StatusCreated)
		fmt.Fprintf(w, `{"id":%q}`, id)
	})
}

func serveHTTP(t *testing.T, e *idem.Engine, p idem.Policy, h http.HandlerFunc) client {
	t.Helper()
	p.Scope = demoScope
	srv := httptest.NewServer(idemhttp.Middleware(e, p)(h))
	t.Cleanup(srv.Close)
	return client{via: overHTTP{}, addr: srv.Listener.Addr().String()}
}

func serveGRPC(t *testing.T, e *idem.Engine, p idem.Policy, h handler) client {
	t.Helper()
	p.Scope = demoScope
	srv := grpc.NewServer(grpc.UnaryInterceptor(idemgrpc.UnaryServerInterceptor(e,
		idemgrpc.WithPolicy(paymentsv1.PaymentService_CreatePayment_FullMethodName, p))))
	paymentsv1.RegisterPaymentServiceServer(srv, service{handler: h})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(listener) }()
	t.Cleanup(func() {
		srv.GracefulStop()
		if err := <-served; err != nil {
			t.Errorf("Serve = %v", err)
		}
	})
	return client{via: overGRPC{}, rpc: listener.Addr().String()}
}

func demoScope(context.Context) (string, error) { return "merchant_demo", nil }

// service is a handler as a gRPC service.
type service struct {
	paymentsv1.UnimplementedPaymentServiceServer

	handler handler
}

// CreatePayment implements [paymentsv1.PaymentServiceServer].
func (s service) CreatePayment(ctx context.Context, _ *paymentsv1.CreatePaymentRequest) (*paymentsv1.Payment, error) {
	id, known := s.handler(ctx)
	if !known {
		return nil, status.Error(codes.Unknown, "it is not known")
	}
	return &paymentsv1.Payment{Id: id}, nil
}
