// The service that README.md and docs/getting-started.md change by their diffs.
package main

import (
	"context"
	"database/sql"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	_ "github.com/jackc/pgx/v5/stdlib"
)

type service struct{ db *sql.DB }

func main() {
	db, err := sql.Open("pgx", os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	s := &service{db}
	r := gin.Default()
	r.Use(authenticate)
	r.POST("/payments", s.createPayment)
	log.Fatal(r.Run("127.0.0.1:8080"))
}

func authenticate(c *gin.Context) { c.Set("merchant", "demo") }

type payment struct {
	To     string `json:"to"`
	Amount int64  `json:"amount"`
}

func (s *service) createPayment(c *gin.Context) {
	var p payment
	if err := c.ShouldBindJSON(&p); err != nil {
		c.AbortWithStatus(http.StatusBadRequest)
		return
	}
	id, err := s.pay(c.Request.Context(), c.GetString("merchant"), p)
	if err != nil {
		log.Print(err)
		c.AbortWithStatus(http.StatusInternalServerError)
		return
	}
	c.JSON(http.StatusCreated, gin.H{"id": id, "status": "succeeded"})
}

// pay takes the money from the merchant's balance and writes the payment.
func (s *service) pay(ctx context.Context, merchant string, p payment) (id int64, err error) {
	tx, err := s.db.BeginTx(ctx, nil)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback()
	_, err = tx.ExecContext(ctx, "UPDATE balances SET amount = amount - $1 WHERE merchant = $2", p.Amount, merchant)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRowContext(ctx, "INSERT INTO payments (payee, amount) VALUES ($1, $2) RETURNING id", p.To, p.Amount).Scan(&id)
	if err != nil {
		return 0, err
	}
	if err := tx.Commit(); err != nil {
		return 0, err
	}
	return id, nil
}
