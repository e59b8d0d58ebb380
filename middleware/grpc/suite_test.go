package idemgrpc_test

import (
	"testing"

	"google.golang.org/grpc"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	"github.com/idemkeeper/idemkeeper/middleware/grpc/grpctest"
)

func TestInterceptors(t *testing.T) {
	t.Parallel()
	grpctest.Run(t, grpctest.Adapter{
		Protect: func(engine *idem.Engine, o grpctest.Options) ([]grpc.ServerOption, error) {
			x, err := idemgrpc.New(engine, []idem.Policy{o.Policy}, idemgrpc.Config{Replay: o.Replay, OptionalKey: o.OptionalKey})
			if err != nil {
				return nil, err
			}
			return []grpc.ServerOption{grpc.ChainUnaryInterceptor(x.Unary()), grpc.ChainStreamInterceptor(x.Stream())}, nil
		},
	})
}
