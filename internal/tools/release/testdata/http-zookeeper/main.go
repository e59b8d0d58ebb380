// A net/http service with its locks in ZooKeeper and its records in Redis.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func main() {
	ctx := context.Background()
	servers, chroot, err := zookeeper.ParseConnectString(os.Getenv("ZOOKEEPER"))
	if err != nil {
		log.Fatal(err)
	}
	locks, err := zookeeper.Open(ctx, zookeeper.Config{Servers: servers, Chroot: chroot})
	if err != nil {
		log.Fatal(err)
	}
	client, err := redisstore.Connect(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	store, err := redisstore.New(ctx, client)
	if err != nil {
		log.Fatal(err)
	}
	engine, err := idem.New(locks.Locker(), store)
	if err != nil {
		log.Fatal(err)
	}
	protect := idemhttp.MustNew(engine, idem.Policy{Scope: merchant, InDoubt: idem.LeaveUnknown()})
	http.Handle("POST /pay", protect(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusCreated) })))
	log.Fatal(http.ListenAndServe(":8080", nil))
}

func merchant(context.Context) (string, error) { return "merchant_1", nil }
