// Package main is a service on Redis alone.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"

	idemredis "github.com/idemkeeper/idemkeeper/engine/redis"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	redisstore "github.com/idemkeeper/idemkeeper/tokenstore/redis"
)

func main() {
	ctx := context.Background()
	client, err := redisstore.Connect(os.Getenv("REDIS_URL"))
	if err != nil {
		log.Fatal(err)
	}
	engine, err := idemredis.New(ctx, client)
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
