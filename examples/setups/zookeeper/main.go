// Package main is a service on locks in ZooKeeper and records in Redis.
package main

import (
	"context"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	"github.com/gin-gonic/gin"

	idemzk "github.com/idemkeeper/idemkeeper/engine/zookeeper"
	"github.com/idemkeeper/idemkeeper/idem"
	"github.com/idemkeeper/idemkeeper/lock/zookeeper"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func main() {
	ctx := context.Background()
	client, err := redisstore.Connect(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	ensemble := zookeeper.Config{Servers: strings.Split(os.Getenv("ZOOKEEPER"), ",")}
	engine, err := idemzk.New(ctx, ensemble, client, idemzk.WithDurableMarkers(time.Hour)) // longer than clients repeat
	if err != nil {
		log.Fatal(err)
	}
	policy := idem.Policy{
		Scope:   idem.ScopeFrom("merchant"),
		InDoubt: idem.LeaveUnknown(), // after a crash a person decides, unless AskResolver looks it up
	}
	r := gin.Default()
	r.Use(func(c *gin.Context) { c.Set("merchant", "demo") }) // your authentication
	r.POST("/payments", idemgin.MustNew(engine, policy), func(c *gin.Context) {
		key, err := idem.DownstreamKey(c.Request.Context(), "charge")
		if err != nil {
			c.Status(http.StatusServiceUnavailable) // nothing was sent
			return
		}
		log.Print("the bank is called with ", key)
		c.JSON(http.StatusCreated, gin.H{"status": "succeeded"})
	})
	log.Fatal(r.Run("127.0.0.1:8080"))
}
