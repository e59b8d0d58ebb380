// A Gin service on PostgreSQL, whose records commit with its payments.
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
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	engine, err := sqlstore.Join(context.Background(), db, dialect.PostgreSQL)
	if err != nil {
		log.Fatal(err)
	}
	router := gin.New()
	router.POST("/pay", idemgin.MustNew(engine, idem.Policy{Scope: merchant}), func(c *gin.Context) {
		tx, err := sqlstore.Tx(c)
		if err == nil {
			_, err = tx.ExecContext(c, "INSERT INTO payments (cents) VALUES (1250)")
		}
		if err != nil {
			c.AbortWithStatus(http.StatusInternalServerError)
			return
		}
		c.String(http.StatusCreated, "paid")
	})
	log.Fatal(router.Run())
}

func merchant(context.Context) (string, error) { return "merchant_1", nil }
