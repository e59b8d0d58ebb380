package grpctest

import (
	"context"

	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/emptypb"
)

// serviceCases are about the names of services.
var serviceCases = []testCase{
	{"gRPC's own ignore keys", func(b *bundle) {
		server := b.newServer()
		healthv1.RegisterHealthServer(server, health.NewServer())
		conn := b.serve(server)
		for range 2 {
			if _, err := healthv1.NewHealthClient(conn).Check(b.withKeys("k1"), &healthv1.HealthCheckRequest{}); err != nil {
				b.Errorf("Check() = %v", err)
			}
		}
		if n := b.records.Len(); n != 0 {
			b.Errorf("%d records, want none", n)
		}
	}},
	{"packages of an application called grpc are protected", func(b *bundle) {
		for _, service := range []string{"grpc.payments.v1.Payments", "grpc.Payments", "grpc.health.v1.HealthFund", "grpc.health.Payments", "grpc"} {
			server, runs := b.newServer(), 0
			server.RegisterService(&grpc.ServiceDesc{ServiceName: service, HandlerType: (*any)(nil), Methods: []grpc.MethodDesc{{
				MethodName: "Do",
				Handler: func(_ any, ctx context.Context, dec func(any) error, interceptor grpc.UnaryServerInterceptor) (any, error) {
					in := new(emptypb.Empty)
					if err := dec(in); err != nil {
						return nil, err
					}
					return interceptor(ctx, in, &grpc.UnaryServerInfo{FullMethod: "/" + service + "/Do"}, func(context.Context, any) (any, error) {
						runs++
						return new(emptypb.Empty), nil
					})
				}}}}, struct{}{})
			conn := b.serve(server)
			for range 2 {
				if err := conn.Invoke(b.withKeys("key-of-"+service), "/"+service+"/Do", &emptypb.Empty{}, &emptypb.Empty{}); err != nil {
					b.Errorf("%s = %v", service, err)
				}
			}
			if runs != 1 {
				b.Errorf("%s ran %d times for one key, want 1", service, runs)
			}
		}
	}},
}
