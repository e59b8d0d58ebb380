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
	ok := b.policyOf(transferMethod)
	with := func(cfg idemgrpc.Config) []idemgrpc.Config { return []idemgrpc.Config{cfg} }
	for name, tt := range map[string]struct {
		policies []idem.Policy
		cfg      []idemgrpc.Config
		want     string
	}{
		"no policy":               {nil, nil, "no policy"},
		"no scope":                {[]idem.Policy{{Name: transferMethod}}, nil, "no Scope"},
		"no scope of all others":  {[]idem.Policy{{}}, nil, "no Scope"},
		"two for a method":        {b.policyOf(transferMethod, transferMethod), nil, "two policies"},
		"two for all others":      {[]idem.Policy{b.policy, b.policy}, nil, "two policies"},
		"two configs":             {ok, []idemgrpc.Config{{}, {}}, "at most one"},
		"no method name":          {b.policyOf("Transfer"), nil, "want /package.Service/Method"},
		"no slash in front":       {b.policyOf("wallet.v1.WalletService/Transfer"), nil, "want /package.Service/Method"},
		"no service":              {b.policyOf("//Do"), nil, "want /package.Service/Method"},
		"no method":               {b.policyOf("/legacy.Service/"), nil, "want /package.Service/Method"},
		"a part too many":         {b.policyOf("/legacy.Service/Do/It"), nil, "want /package.Service/Method"},
		"a typing error":          {b.policyOf("/wallet.v1.WalletService/Transfr"), nil, "no generated code"},
		"another service":         {b.policyOf("/wallet.v2.WalletService/Transfer"), nil, "no generated code"},
		"a message for a service": {b.policyOf("/wallet.v1.TransferRequest/Transfer"), nil, "no generated code"},
		"a stream of requests":    {b.policyOf(uploadMethod), nil, "streams requests"},
		"exempt and protected":    {ok, with(idemgrpc.Config{Exempt: []string{transferMethod}}), "exempt"},
		"exempt nonsense":         {ok, with(idemgrpc.Config{Exempt: []string{"Transfer"}}), "exempt"},
		"no such field":           {ok, with(idemgrpc.Config{KeyField: "nonce"}), "string field"},
		"a field that is no text": {ok, with(idemgrpc.Config{KeyField: "amount"}), "string field"},
		"metadata that is binary": {ok, with(idemgrpc.Config{MetadataKey: "key-bin"}), "metadata"},
		"metadata with capitals":  {ok, with(idemgrpc.Config{MetadataKey: "Idempotency-Key"}), "metadata"},
		"cookies":                 {ok, with(idemgrpc.Config{Replay: []string{"Set-Cookie"}}), "never replayed"},
		"gRPC's own":              {ok, with(idemgrpc.Config{Replay: []string{"grpc-status-details-bin"}}), "metadata"},
		"the protocol's own":      {ok, with(idemgrpc.Config{Replay: []string{"content-type"}}), "not the name"},
		"no name":                 {ok, with(idemgrpc.Config{Replay: []string{"a b"}}), "not the name"},
	} {
		if _, err := idemgrpc.New(b.engine, tt.policies, tt.cfg...); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: New() = %v, want an error with %q", name, err, tt.want)
		}
	}
	if _, err := idemgrpc.New(nil, ok); err == nil {
		t.Error("New(nil) = nil, want an error")
	}
	if _, err := idemgrpc.New(b.engine, b.policyOf("/grpc.health.v1.Health/Check")); err != nil {
		t.Errorf("New() with a policy for gRPC's health service = %v", err)
	}
	func() {
		defer func() {
			if recover() == nil {
				t.Error("MustNew() with a wiring error did not panic")
			}
		}()
		idemgrpc.MustNew(b.engine, nil)
	}()
	if x := idemgrpc.MustNew(b.engine, ok); x.Unary() == nil || x.Stream() == nil {
		t.Error("no interceptor")
	}
}

// Tools send the caller's metadata with every call, those of reflection
// included.
func TestOwnServicesOfGRPCIgnoreKeys(t *testing.T) {
	t.Parallel()
	b := setup(t)
	x, err := idemgrpc.New(b.engine, []idem.Policy{b.policy}, idemgrpc.Config{RefuseUnknown: true})
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
	x, err := idemgrpc.New(b.engine, []idem.Policy{b.policy}, idemgrpc.Config{RefuseUnknown: true})
	if err != nil {
		t.Fatal(err)
	}
	for _, service := range []string{"grpc.payments.v1.Payments", "grpc.Payments", "grpc.health.v1.HealthFund", "grpc.health.Payments", "grpc"} {
		server, runs := handWritten(service, x.Unary())
		var keys []string
		conn := serve(t, server, grpc.WithChainUnaryInterceptor(idemgrpc.MustUnaryClientInterceptor(honoured),
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
