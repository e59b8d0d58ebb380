// Package main is a service on database/sql whose payments commit together with their records.
package main

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
	"github.com/idemkeeper/idemkeeper/tokenstore/sql/dialect"
)

func main() {
	ctx := context.Background()
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	engine, err := sqlstore.Join(ctx, db, dialect.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}
	policy := idem.Policy{Scope: idem.ScopeFrom("merchant")}
	r := gin.Default()
	r.Use(func(c *gin.Context) { c.Set("merchant", "demo") }) // your authentication
	r.POST("/payments", idemgin.MustNew(engine, policy), func(c *gin.Context) {
		ctx := c.Request.Context()
		tx, err := sqlstore.Tx(ctx) // the middleware commits it
		if err == nil {
			_, err = tx.ExecContext(ctx, "INSERT INTO payments (merchant, amount) VALUES ($1, 1250)", c.GetString("merchant"))
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
