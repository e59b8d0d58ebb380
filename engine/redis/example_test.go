package idemredis_test

import (
	"context"
	"fmt"

	"github.com/alicebob/miniredis/v2"

	idemredis "github.com/idemkeeper/idemkeeper/engine/redis"
	"github.com/idemkeeper/idemkeeper/idem"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

// A payment and its repeat.
func Example() {
	server := miniredis.NewMiniRedis() // stands for a real one
	if err := server.Start(); err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()

	ctx := context.Background()
	client, err := redisstore.Connect("redis://" + server.Addr())
	if err != nil {
		fmt.Println(err)
		return
	}
	defer client.Close()
	engine, err := idemredis.New(ctx, client, quiet)
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = engine.Close(ctx) }()

	// A service protects its routes with the middleware for net/http, Gin or gRPC. A job calls the engine itself.
	policy := idem.Policy{Name: "pay", InDoubt: idem.LeaveUnknown()}
	for range 2 {
		res, err := engine.Do(ctx, idem.Operation{Scope: "merchant", Key: "order-1001", Policy: &policy, Fingerprint: idem.FingerprintOf("pay", "1250")},
			func(context.Context) (idem.Response, error) {
				return idem.Response{Body: []byte("paid")}, nil
			})
		fmt.Println(string(res.Response.Body), res.Replayed, err)
	}
	// Output:
	// paid false <nil>
	// paid true <nil>
}
