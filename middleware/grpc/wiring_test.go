package idemgrpc_test

import (
	"context"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/reflection"
	reflectionv1 "google.golang.org/grpc/reflection/grpc_reflection_v1"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
)

func TestWiringErrors(t *testing.T) {
	t.Parallel()
	b := setup(t)
	ok := idemgrpc.WithPolicy(transferMethod, b.policy)
	for name, tt := range map[string]struct {
		opts []idemgrpc.Option
		want string
	}{
		"no policy":                {nil, "no policy"},
		"no scope":                 {[]idemgrpc.Option{idemgrpc.WithPolicy(transferMethod, idem.Policy{})}, "no Scope"},
		"no scope by default":      {[]idemgrpc.Option{idemgrpc.WithDefaultPolicy(idem.Policy{})}, "no Scope"},
		"no method name":           {[]idemgrpc.Option{idemgrpc.WithPolicy("Transfer", b.policy)}, "want /package.Service/Method"},
		"no slash in front":        {[]idemgrpc.Option{idemgrpc.WithPolicy("wallet.v1.WalletService/Transfer", b.policy)}, "want /package.Service/Method"},
		"no service":               {[]idemgrpc.Option{idemgrpc.WithPolicy("//Do", b.policy), idemgrpc.WithUndescribedMethods()}, "want /package.Service/Method"},
		"no method":                {[]idemgrpc.Option{idemgrpc.WithPolicy("/legacy.Service/", b.policy), idemgrpc.WithUndescribedMethods()}, "want /package.Service/Method"},
		"a part too many":          {[]idemgrpc.Option{idemgrpc.WithPolicy("/legacy.Service/Do/It", b.policy), idemgrpc.WithUndescribedMethods()}, "want /package.Service/Method"},
		"a typing error":           {[]idemgrpc.Option{idemgrpc.WithPolicy("/wallet.v1.WalletService/Transfr", b.policy)}, "no generated code"},
		"another service":          {[]idemgrpc.Option{idemgrpc.WithPolicy("/wallet.v2.WalletService/Transfer", b.policy)}, "no generated code"},
		"a message for a service":  {[]idemgrpc.Option{idemgrpc.WithPolicy("/wallet.v1.TransferRequest/Transfer", b.policy)}, "no generated code"},
		"a stream of requests":     {[]idemgrpc.Option{idemgrpc.WithPolicy(uploadMethod, b.policy)}, "streams requests"},
		"exempt and protected":     {[]idemgrpc.Option{ok, idemgrpc.WithExempt(transferMethod)}, "exempt"},
		"exempt nonsense":          {[]idemgrpc.Option{ok, idemgrpc.WithExempt("Transfer")}, "exempt"},
		"no such field":            {[]idemgrpc.Option{ok, idemgrpc.WithKeyField("nonce", transferMethod)}, "no string field"},
		"a field that is no text":  {[]idemgrpc.Option{ok, idemgrpc.WithKeyField("amount", transferMethod)}, "no string field"},
		"a field without a policy": {[]idemgrpc.Option{ok, idemgrpc.WithKeyField("request_id", payoutMethod)}, "no policy"},
		"metadata that is binary":  {[]idemgrpc.Option{ok, idemgrpc.WithMetadataKey("key-bin")}, "metadata"},
		"metadata with capitals":   {[]idemgrpc.Option{ok, idemgrpc.WithMetadataKey("Idempotency-Key")}, "metadata"},
		"cookies":                  {[]idemgrpc.Option{ok, idemgrpc.WithReplayMetadata("Set-Cookie")}, "never replayed"},
		"gRPC's own":               {[]idemgrpc.Option{ok, idemgrpc.WithReplayMetadata("grpc-status-details-bin")}, "metadata"},
		"the protocol's own":       {[]idemgrpc.Option{ok, idemgrpc.WithReplayMetadata("content-type")}, "not the name"},
		"no name":                  {[]idemgrpc.Option{ok, idemgrpc.WithReplayMetadata("a b")}, "not the name"},
		"no known behaviour":       {[]idemgrpc.Option{ok, idemgrpc.WithUnknownMethods(7)}, "WithUnknownMethods"},
	} {
		if _, err := idemgrpc.New(b.engine, tt.opts...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New() = %v, want an error with %q", name, err, tt.want)
		}
	}
	if _, err := idemgrpc.New(nil, ok); err == nil {
		t.Error("New(nil) = nil, want an error")
	}
	for _, method := range []string{"/legacy.Service/Do", "/grpc.health.v1.Health/Check"} {
		if _, err := idemgrpc.New(b.engine, idemgrpc.WithPolicy(method, b.policy), idemgrpc.WithUndescribedMethods()); err != nil {
			t.Errorf("New() with a policy for %s = %v", method, err)
		}
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("UnaryServerInterceptor() with a wiring error did not panic")
			}
		}()
		idemgrpc.UnaryServerInterceptor(b.engine)
	}()
	if idemgrpc.UnaryServerInterceptor(b.engine, ok) == nil || idemgrpc.StreamServerInterceptor(b.engine, ok) == nil {
		t.Error("no interceptor")
	}
}

// Tools send the caller's metadata with every call, those of reflection
// included.
func TestOwnServicesOfGRPCIgnoreKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := idemgrpc.New(b.engine, idemgrpc.WithDefaultPolicy(b.policy), idemgrpc.WithUnknownMethods(idemgrpc.RefuseUnknown))
	if err != nil {
		t.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(x.Unary()), grpc.StreamInterceptor(x.Stream()))
	healthv1.RegisterHealthServer(server, health.NewServer())
	reflection.Register(server)
	conn := serve(t, server)
	for range 2 {
		if _, err := healthv1.NewHealthClient(conn).Check(b.withKeys("k1"), &healthv1.HealthCheckRequest{}); err != nil {
			t.Errorf("Check() = %v", err)
		}
	}
	ctx, cancel := context.WithCancel(b.withKeys("k1"))
	defer cancel()
	s, err := reflectionv1.NewServerReflectionClient(conn).ServerReflectionInfo(ctx)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Send(&reflectionv1.ServerReflectionRequest{MessageRequest: &reflectionv1.ServerReflectionRequest_ListServices{}}); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Recv(); err != nil {
		t.Errorf("ServerReflectionInfo() = %v", err)
	}
}

// An application may have a package called grpc, and services whose names begin as gRPC's own do.
func TestPackagesOfAnApplicationCalledGRPCAreProtected(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := idemgrpc.New(b.engine, idemgrpc.WithDefaultPolicy(b.policy), idemgrpc.WithUnknownMethods(idemgrpc.RefuseUnknown))
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"grpc.payments.v1.Payments", "grpc.Payments", "grpc.health.v1.HealthFund", "grpc.health.Payments", "grpc"} {
		server, runs := handWritten(service, x.Unary())
		var keys []string
		conn := serve(t, server, grpc.WithChainUnaryInterceptor(idemgrpc.UnaryClientInterceptor(honoured),
			func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoker grpc.UnaryInvoker, opts ...grpc.CallOption) error {
				md, _ := metadata.FromOutgoingContext(ctx)
				keys = append(keys, md.Get("idempotency-key")...)
				return invoker(ctx, method, req, reply, cc, opts...)
			}))
		method := "/" + service + "/Do"
		for range 3 {
			if err := conn.Invoke(b.withKeys("key-of-"+service), method, &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
				t.Errorf("%s = %v", method, err)
			}
		}
		if *runs != 1 {
			t.Errorf("%s ran %d times for one key, want 1", method, *runs)
		}
		keys = nil
		if err := conn.Invoke(t.Context(), method, &emptypb.Empty{}, &emptypb.Empty{}); err != nil || len(keys) != 1 {
			t.Errorf("the client sent keys %q to %s, %v, want one", keys, method, err)
		}
		keys = nil
		_ = conn.Invoke(t.Context(), healthv1.Health_Check_FullMethodName, &emptypb.Empty{}, &emptypb.Empty{})
		if len(keys) != 0 {
			t.Errorf("the client sent keys %q to gRPC's health service, want none", keys)
		}
	}
}

// A service that was written without protoc.
func TestUndescribedMethod(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := idemgrpc.New(b.engine, idemgrpc.WithPolicy("/legacy.Service/Do", b.policy), idemgrpc.WithUndescribedMethods())
	if err != nil {
		t.Fatal(err)
	}
	server, runs := handWritten("legacy.Service", x.Unary())
	conn := serve(t, server)
	for range 2 {
		if err := conn.Invoke(b.withKeys("k1"), "/legacy.Service/Do", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
			t.Errorf("Do() = %v", err)
		}
	}
	if *runs != 1 {
		t.Errorf("handler ran %d times, want 1", *runs)
	}
}

// handWritten is a server with a service that no generated code describes. It counts the runs of
// its one method.
func handWritten(service string, unary grpc.UnaryServerInterceptor) (server *grpc.Server, runs *int) {
	runs = new(int)
	server = grpc.NewServer(grpc.UnaryInterceptor(unary))
	server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
		MethodName: "Do",
		Handler: func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
			in := new(emptypb.Empty)
			if err := dec(in); err != nil {
				return nil, err
			}
			return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/" + service + "/Do"}, func(context.Context, any) (any, error) {
				*runs++
				return new(emptypb.Empty), nil
			})
		}}}}, struct{}{})
	return server, runs
}
