package broken

import (
	"database/sql"
	"errors"
	"fmt"
	"net/http"
	"time"

	"github.com/gin-gonic/gin"
	"github.com/redis/go-redis/v9"
)

// SetNX keeps keys in Redis: SET NX with a time to live before the payment, and the answer in its place afterwards.
// An error deletes the key, so that the client can try again.
//
// A process that dies after it has paid leaves the key to expire, and the next request pays again. The kit finds
// it at "INSERT INTO payments", killed after.
type SetNX struct {
	Redis *redis.Client
	DB    *sql.DB
	TTL   time.Duration // of a key whose payment is under way
}

// Handle is the handler of the route.
func (s *SetNX) Handle(c *gin.Context) {
	key, o, ok := read(c)
	if !ok {
		return
	}
	ctx := c.Request.Context()
	key = "pay:" + key
	err := s.Redis.SetArgs(ctx, key, "pending", redis.SetArgs{Mode: "NX", TTL: s.TTL}).Err()
	if errors.Is(err, redis.Nil) {
		answer, err := s.Redis.Get(ctx, key).Result()
		switch {
		case err != nil:
			failed(c, err)
		case answer == "pending":
			c.AbortWithStatusJSON(http.StatusConflict, gin.H{"error": "in progress"})
		default:
			c.Data(http.StatusCreated, "application/json", []byte(answer))
		}
		return
	}
	if err != nil {
		failed(c, err)
		return
	}
	if _, err := s.DB.ExecContext(ctx, "INSERT INTO payments (key, amount) VALUES ($1, $2)", o.Order, o.Amount); err != nil {
		s.Redis.Del(ctx, key)
		failed(c, err)
		return
	}
	answer := fmt.Sprintf(`{"paid":%d}`, o.Amount)
	if err := s.Redis.Set(ctx, key, answer, 24*time.Hour).Err(); err != nil {
		failed(c, err)
		return
	}
	c.Data(http.StatusCreated, "application/json", []byte(answer))
}
