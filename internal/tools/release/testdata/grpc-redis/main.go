// A gRPC service with its records and locks in Redis.
package main

import (
	"context"
	"log"
	"net"
	"os"

	"github.com/redis/go-redis/v9"
	"google.golang.org/grpc"
	"google.golang.org/grpc/health"
	healthv1 "google.golang.org/grpc/health/grpc_health_v1"

	"github.com/idemkeeper/idemkeeper/idem"
	redislock "github.com/idemkeeper/idemkeeper/lock/redis"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func main() {
	ctx, client := context.Background(), redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	store, err := redisstore.New(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	locker, err := redislock.New(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := idem.New(locker, store)
	if err != nil {
		log.Fatal(err)
	}
	protect, err := idemgrpc.New(engine, []idem.Policy{{Name: "/bank.Bank/Pay", Scope: merchant, InDoubt: idem.LeaveUnknown()}})
	if err != nil {
		log.Fatal(err)
	}
	server := grpc.NewServer(grpc.UnaryInterceptor(protect.Unary()), grpc.StreamInterceptor(protect.Stream()))
	healthv1.RegisterHealthServer(server, health.NewServer())
	listener, err := net.Listen("tcp", ":9090")
	if err != nil {
		log.Fatal(err)
	}
	log.Fatal(server.Serve(listener))
}

func merchant(context.Context) (string, error) { return "merchant_1", nil }
