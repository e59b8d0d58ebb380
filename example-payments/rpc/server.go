package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/reflection"

	"github.com/idemkeeper/idemkeeper/example-payments/auth"
	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// Metrics counts calls. It is safe for concurrent use.
type Metrics interface {
	Call(method, code string, d time.Duration)
}

// Config is what a [Server] is made of. All but Wait and Resolver is required.
type Config struct {
	Engine   *idem.Engine
	Service  *payments.Service
	Ledger   payments.Ledger
	Keys     auth.APIKeys
	Metrics  Metrics
	Log      *slog.Logger
	Wait     time.Duration // how long a duplicate waits for the first call
	Resolver idem.Resolver // nil: outcomes in doubt stay unknown
}

// Server is the gRPC server of the sample. Make it with [New].
type Server struct {
	paymentsv1.UnimplementedPaymentServiceServer

	cfg      Config
	grpc     *grpc.Server
	stopping chan struct{} // closed once it stops
	stop     func()        // closes stopping
}

// connectionTimeout bounds how long a client may take to say hello, for which
// Shutdown and Close wait.
const connectionTimeout = 5 * time.Second

// New returns the server. An error says that the policies are wrong.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, stopping: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopping) })
	interceptors, err := idemgrpc.New(cfg.Engine,
		idemgrpc.WithPolicy(paymentsv1.PaymentService_CreatePayment_FullMethodName, s.policy(idem.ClientKey)),
		idemgrpc.WithPolicy(paymentsv1.PaymentService_CreateTrade_FullMethodName, s.policy(idem.IssuedToken)))
	if err != nil {
		return nil, fmt.Errorf("rpc: %w", err)
	}
	s.grpc = grpc.NewServer(
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.ChainUnaryInterceptor(s.measure, s.recover, s.authenticate, s.validate, s.answered, interceptors.Unary()),
		grpc.ChainStreamInterceptor(s.measureStream, s.recoverStream, s.authenticateStream, s.untilStopping, interceptors.Stream()))
	paymentsv1.RegisterPaymentServiceServer(s.grpc, s)
	idemgrpc.RegisterStatusServer(s.grpc, cfg.Engine, s.policy(idem.ClientKey)) // of either kind, and of HTTP's: one resolver serves all
	healthv1.RegisterHealthServer(s.grpc, &health{server: s})
	reflection.Register(s.grpc)
	return s, nil
}

func (s *Server) policy(kind idem.KeyKind) idem.Policy {
	return idem.Policy{Scope: auth.Scope, Kind: kind, Wait: s.cfg.Wait, Doubt: idem.Ask(s.cfg.Resolver)}
}

// Serve serves until Shutdown or Close, and then returns nil. It closes the
// listener.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Shutdown stops accepting and waits for the calls that run. Where ctx ends
// first it returns its error, and calls may still run.
func (s *Server) Shutdown(ctx context.Context) error {
	s.stop()
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.grpc.GracefulStop()
	}()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
		return ctx.Err() // Close ends the other goroutine
	}
}

// Close cuts all connections off. What moves money goes on: the engine waits
// for it.
func (s *Server) Close() {
	s.stop()
	s.grpc.Stop()
}
