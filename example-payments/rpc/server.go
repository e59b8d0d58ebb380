// Package rpc is the sample's gRPC. It serves the same payments as package server,
// over the same ledger, engine and keys.
//
// A call passes the interceptors recover, authenticate, validate and
// idempotency, and then the handler. This is the order of the HTTP routes, for the
// same reason. A call without permission or with an invalid order leaves its key
// untouched.
//
// Every error but that of a panic carries an ErrorInfo. Its reason is the HTTP code
// in upper snake case. Its domain is [Domain] for codes of the sample, and that of
// package idemgrpc for codes of the engine.
//
// The service idemkeeper.v1.Idempotency tells the state of the merchant's keys, used
// over either transport. Health and reflection need no API key. SERVING means the
// same as /readyz.
//
// On the methods that move money, unknown fields are refused, as unknown members are
// over HTTP.
package rpc

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"sync"
	"time"

	"go.opentelemetry.io/contrib/instrumentation/google.golang.org/grpc/otelgrpc"
	"google.golang.org/grpc"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/reflection"
	"google.golang.org/grpc/stats"

	"github.com/idemkeeper/idemkeeper/example-payments/payments"
	paymentsv1 "github.com/idemkeeper/idemkeeper/example-payments/proto/payments/v1"
	"github.com/idemkeeper/idemkeeper/example-payments/telemetry"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

// Config holds the parts of a [Server]. All but Wait and Resolver are required.
type Config struct {
	Engine    *idem.Engine
	Service   *payments.Service
	Ledger    payments.Ledger
	Keys      payments.APIKeys
	Telemetry *telemetry.Telemetry
	Log       *slog.Logger
	Wait      time.Duration // how long a duplicate waits for the first call
	Resolver  idem.Resolver // without it outcomes in doubt stay unknown
}

// Server is the gRPC server of the sample. Make it with [New]. It has one method per
// call and interceptor, and so more than other types.
type Server struct {
	paymentsv1.UnimplementedPaymentServiceServer

	cfg      Config
	grpc     *grpc.Server
	stopping chan struct{} // closed when the server stops
	stop     func()        // closes stopping
}

// connectionTimeout bounds the handshake of a connection. Shutdown and Close wait
// for it.
const connectionTimeout = 5 * time.Second

// Limits of one client. A call whose message never comes, and an answer that is never read, would
// hold a goroutine for as long as the connection lives. So a connection has an end. Clients of
// gRPC make another one by themselves.
const (
	maxStreams    = 256     // calls at once on a connection
	maxHeaders    = 2 << 20 // so that the middleware refuses a very long key, with a reason
	idleTimeout   = 5 * time.Minute
	connectionAge = 30 * time.Minute
	ageGrace      = 5 * time.Minute // for the calls that run then
	silence       = time.Minute     // before a client is asked whether it is there
	silenceEnd    = 20 * time.Second
)

// New returns the server. It returns an error if the policies are wrong.
func New(cfg Config) (*Server, error) {
	s := &Server{cfg: cfg, stopping: make(chan struct{})}
	s.stop = sync.OnceFunc(func() { close(s.stopping) })
	interceptors, err := idemgrpc.New(cfg.Engine, []idem.Policy{
		s.policy(paymentsv1.PaymentService_CreatePayment_FullMethodName, false),
		s.policy(paymentsv1.PaymentService_CreateTrade_FullMethodName, true),
	})
	if err != nil {
		return nil, fmt.Errorf("rpc: %w", err)
	}
	s.grpc = grpc.NewServer(
		grpc.ConnectionTimeout(connectionTimeout),
		grpc.MaxConcurrentStreams(maxStreams), grpc.MaxHeaderListSize(maxHeaders),
		grpc.KeepaliveParams(keepalive.ServerParameters{MaxConnectionIdle: idleTimeout, MaxConnectionAge: connectionAge,
			MaxConnectionAgeGrace: ageGrace, Time: silence, Timeout: silenceEnd}),
		grpc.StatsHandler(measured(cfg.Telemetry)),
		grpc.ChainUnaryInterceptor(s.recover, s.authenticate, s.validate, s.logAnswered, interceptors.Unary()),
		grpc.ChainStreamInterceptor(s.recoverStream, s.authenticateStream, s.untilStopping, interceptors.Stream()))
	paymentsv1.RegisterPaymentServiceServer(s.grpc, s)
	// It serves keys of both kinds and both transports, because one resolver does.
	if err := idemgrpc.RegisterStatusServer(s.grpc, cfg.Engine, s.policy("", false)); err != nil {
		return nil, fmt.Errorf("rpc: %w", err)
	}
	healthv1.RegisterHealthServer(s.grpc, &health{server: s, ready: payments.NewReadiness(cfg.Engine, cfg.Ledger)})
	reflection.Register(s.grpc)
	return s, nil
}

// measured starts a span for each call, in the trace of its caller, and measures it. Probes and
// tools are left out.
func measured(t *telemetry.Telemetry) stats.Handler {
	return otelgrpc.NewServerHandler(otelgrpc.WithTracerProvider(t.Tracers), otelgrpc.WithMeterProvider(t.Meters),
		otelgrpc.WithPropagators(t.Propagator),
		otelgrpc.WithFilter(func(info *stats.RPCTagInfo) bool { return !isOpen(info.FullMethodName) }))
}

func (s *Server) policy(method string, issued bool) idem.Policy {
	return idem.Policy{Name: method, Scope: payments.Scope, IssuedTokens: issued, DuplicateWait: s.cfg.Wait, InDoubt: idem.AskResolver(s.cfg.Resolver)}
}

// Serve serves until Shutdown or Close, and then returns nil. It closes the
// listener.
func (s *Server) Serve(l net.Listener) error { return s.grpc.Serve(l) }

// Shutdown stops accepting and waits for running calls. If ctx ends first, it
// returns ctx's error, and calls may still run. Call Close then.
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

// Close cuts all connections off. Running payments go on, and the engine waits for
// them.
func (s *Server) Close() {
	s.stop()
	s.grpc.Stop()
}
