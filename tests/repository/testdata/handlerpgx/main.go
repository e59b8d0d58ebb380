// A service on a pool of pgx that docs/adopting.md changes by a diff.
package main

import (
	"context"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	"github.com/jackc/pgx/v5/pgxpool"
)

type service struct{ pool *pgxpool.Pool }

func main() {
	pool, err := pgxpool.New(context.Background(), os.Getenv("DATABASE_URL"))
	if err != nil {
		log.Fatal(err)
	}
	s := &service{pool}
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
	tx, err := s.pool.Begin(ctx)
	if err != nil {
		return 0, err
	}
	defer tx.Rollback(ctx)
	_, err = tx.Exec(ctx, "UPDATE balances SET amount = amount - $1 WHERE merchant = $2", p.Amount, merchant)
	if err != nil {
		return 0, err
	}
	err = tx.QueryRow(ctx, "INSERT INTO payments (payee, amount) VALUES ($1, $2) RETURNING id", p.To, p.Amount).Scan(&id)
	if err != nil {
		return 0, err
	}
	if err := tx.Commit(ctx); err != nil {
		return 0, err
	}
	return id, nil
}
