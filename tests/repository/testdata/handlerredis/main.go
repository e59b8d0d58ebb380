// A service on Redis, whose handler calls a bank, and that docs/adopting.md changes by a diff.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"log"
	"net/http"
	"os"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

type service struct {
	redis *redis.Client
	bank  string
}

func main() {
	client := redis.NewClient(&redis.Options{Addr: os.Getenv("REDIS_ADDR")})
	s := &service{client, os.Getenv("BANK_URL")}
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
	id, err := s.charge(c.Request.Context(), c.GetString("merchant"), p)
	if err != nil {
		log.Print(err)
		c.AbortWithStatus(http.StatusInternalServerError)
		return
	}
	c.JSON(http.StatusCreated, gin.H{"id": id, "status": "succeeded"})
}

// charge numbers the payment of the merchant and has the bank make it.
func (s *service) charge(ctx context.Context, merchant string, p payment) (id int64, err error) {
	id, err = s.redis.Incr(ctx, "payments of "+merchant).Result()
	if err != nil {
		return 0, err
	}
	body, err := json.Marshal(p)
	if err != nil {
		return 0, err
	}
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, s.bank, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := http.DefaultClient.Do(r)
	if err != nil {
		return 0, err
	}
	return id, resp.Body.Close()
}
