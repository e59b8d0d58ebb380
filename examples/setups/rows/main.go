// Package main is a service on locks and records in the rows of a database, without a transaction while the bank is called.
package main

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	_ "github.com/jackc/pgx/v5/stdlib"

	idemsql "github.com/idemkeeper/idemkeeper/engine/sql"
	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func main() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	engine, err := idemsql.New(ctx, db, dialect.PostgreSQL)
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
