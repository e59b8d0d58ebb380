// Package main is a service on a pool of pgx whose payments commit together with their records.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	pgxstore "github.com/idemkeeper/idemkeeper/tokenstore/sql/pgx"
)

func main() {
	ctx := context.Background()
	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	engine, err := pgxstore.Join(ctx, pool)
	if err != nil {
		log.Fatal(err)
	}
	policy := idem.Policy{Scope: idem.ScopeFrom("merchant")}
	r := gin.Default()
	r.Use(func(c *gin.Context) { c.Set("merchant", "demo") }) // your authentication
	r.POST("/payments", idemgin.MustNew(engine, policy), func(c *gin.Context) {
		ctx := c.Request.Context()
		tx, err := pgxstore.Tx(ctx) // the middleware commits it
		if err == nil {
			_, err = tx.Exec(ctx, "INSERT INTO payments (merchant, amount) VALUES ($1, 1250)", c.GetString("merchant"))
		}
		if err != nil {
			log.Print(err)
			c.Status(http.StatusInternalServerError) // and rolls it back
			return
		}
		c.JSON(http.StatusCreated, gin.H{"status": "succeeded"})
	})
	log.Fatal(r.Run("127.0.0.1:8080"))
}
