// Package broken has five more ways to make a payment safe to repeat. Each looks right, passes the usual tests, and has a fault.
// The comment on each names a point and a fault at which package crashtest finds it.
package broken

import (
	"encoding/json"
	"io"
	"net/http"

	"github.com/gin-gonic/gin"
)

// order is the request.
type order struct {
	Order  string `json:"order"`
	Amount int64  `json:"amount"`
}

// read returns the key and the order of a request.
func read(c *gin.Context) (key string, o order, ok bool) {
	key = c.GetHeader("Idempotency-Key")
	body, err := io.ReadAll(io.LimitReader(c.Request.Body, 1<<20))
	if key == "" || err != nil || json.Unmarshal(body, &o) != nil {
		c.AbortWithStatusJSON(http.StatusBadRequest, gin.H{"error": "a key and an order are needed"})
		return "", order{}, false
	}
	return key, o, true
}

// failed answers after an error. The client may send the request again.
func failed(c *gin.Context, err error) {
	_ = c.Error(err)
	c.AbortWithStatusJSON(http.StatusInternalServerError, gin.H{"error": "internal error"})
}
