package bench

import (
	"context"
	"net"
	"testing"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/test/bufconn"

	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// paymentService answers and does nothing else, so that the call is all there is.
type paymentService struct {
	paymentsv1.UnimplementedPaymentServiceServer
	runs runs
}

func (p *paymentService) CreatePayment(_ context.Context, r *paymentsv1.CreatePaymentRequest) (*paymentsv1.Payment, error) {
	p.runs.Add(1)
	return &paymentsv1.Payment{
		Id: "p1", From: r.GetFrom(), To: r.GetTo(), Amount: r.GetAmount(), Currency: r.GetCurrency(), Note: r.GetNote(), Status: "succeeded",
	}, nil
}

// BenchmarkGRPC is a whole unary call, client included: bare, with the
// interceptor and a fresh key, and as a replay. What the interceptor adds is the
// difference to bare, which carries the same metadata. It is measured in turns with
// bare: that is what the comparisons are about, and the other cases show what of.
//
// It is taken over bufconn, a pipe in memory, and over TCP on the loopback
// interface, which services speak. What the interceptor adds does not depend on the
// transport; over TCP the rounds scatter more, since most of a call is the
// kernel's then, and its caches are the interceptor's as well.
//
// There is no peer beside it: the one Go module known to do the same for gRPC,
// idemlease, was not to be had from the module proxy when this was written.
func BenchmarkGRPC(b *testing.B) {
	for _, transport := range []string{"tcp", "bufconn"} {
		b.Run(transport, func(b *testing.B) {
			b.Run("bare", func(b *testing.B) {
				client, service := startGRPC(b, transport)
				service.runs.want(b, callGRPC(b, client, newKeys().next))
			})
			b.Run("fresh", func(b *testing.B) {
				client, service := startGRPC(b, transport, protectGRPC(b))
				service.runs.want(b, callGRPC(b, client, newKeys().next))
			})
			b.Run("replay", func(b *testing.B) {
				client, service := startGRPC(b, transport, protectGRPC(b))
				callGRPC(b, client, newKeys().same)
				service.runs.want(b, 1)
			})
			b.Run("in-turns", func(b *testing.B) {
				bare, _ := startGRPC(b, transport)
				protected, _ := startGRPC(b, transport, protectGRPC(b))
				keys := newKeys()
				inTurns(b, func() { payGRPC(b, bare, keys.next()) },
					turn{"fresh", func() { payGRPC(b, protected, keys.next()) }},
					turn{"replay", func() { payGRPC(b, protected, keys.same()) }})
			})
		})
	}
}

func protectGRPC(b *testing.B) grpc.ServerOption {
	b.Helper()
	pay := policy
	pay.Name = paymentsv1.PaymentService_CreatePayment_FullMethodName
	return grpc.UnaryInterceptor(idemgrpc.MustNew(memoryEngine(b), []idem.Policy{pay}).Unary())
}

// startGRPC serves payments and connects a client, as grpc-go does by default.
func startGRPC(b *testing.B, transport string, opts ...grpc.ServerOption) (paymentsv1.PaymentServiceClient, *paymentService) {
	b.Helper()
	ln, dial := listen(b, transport)
	server, service := grpc.NewServer(opts...), &paymentService{}
	paymentsv1.RegisterPaymentServiceServer(server, service)
	served := make(chan error, 1)
	go func() { served <- server.Serve(ln) }()

	conn, err := grpc.NewClient("passthrough:///"+ln.Addr().String(),
		grpc.WithContextDialer(dial), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() {
		_ = conn.Close()
		server.GracefulStop()
		if err := <-served; err != nil {
			b.Error(err)
		}
	})
	return paymentsv1.NewPaymentServiceClient(conn), service
}

func listen(b *testing.B, transport string) (net.Listener, func(context.Context, string) (net.Conn, error)) {
	b.Helper()
	if transport == "bufconn" {
		ln := bufconn.Listen(1 << 20)
		return ln, func(ctx context.Context, _ string) (net.Conn, error) { return ln.DialContext(ctx) }
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		b.Fatal(err)
	}
	dialer := &net.Dialer{Timeout: 10 * time.Second}
	return ln, func(ctx context.Context, addr string) (net.Conn, error) { return dialer.DialContext(ctx, "tcp", addr) }
}

// callGRPC calls one after the other and returns how often.
func callGRPC(b *testing.B, client paymentsv1.PaymentServiceClient, key func() string) int {
	b.Helper()
	return alone(b, func() { payGRPC(b, client, key()) })
}

func payGRPC(b *testing.B, client paymentsv1.PaymentServiceClient, key string) {
	b.Helper()
	ctx := metadata.NewOutgoingContext(context.Background(), metadata.MD{"idempotency-key": {key}})
	_, err := client.CreatePayment(ctx, &paymentsv1.CreatePaymentRequest{From: "alice", To: "bob", Amount: 1250, Currency: "USD", Note: "coffee"})
	if err != nil {
		b.Fatal(err)
	}
}
