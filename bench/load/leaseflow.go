package load

import (
	"context"
	"crypto/rand"
	_ "embed"
	"errors"
	"strings"
	"time"

	"github.com/gin-gonic/gin"
	goredis "github.com/redis/go-redis/v9"
)

//go:embed lease_begin.lua
var leaseBeginText string

//go:embed lease_finish.lua
var leaseFinishText string

const (
	leaseTime   = 30 * time.Second
	leasePrefix = "lease:" // no result begins like this
)

var errLeased = errors.New("another request has the lease")

// leaseFlow is the fastest library that needs Redis alone: the lease is the record, and the result takes its place. It takes
// two trips. It compares no requests, and it leaves no trace of an execution whose lease is over, which then runs again.
func leaseFlow(_ context.Context, s *service) ([]gin.HandlerFunc, error) {
	client, err := s.redisClient()
	begin, finish := goredis.NewScript(leaseBeginText), goredis.NewScript(leaseFinishText)
	return []gin.HandlerFunc{func(c *gin.Context) {
		ctx, keys := c.Request.Context(), []string{s.config.Prefix + c.GetHeader(keyHeader)}
		lease := leasePrefix + rand.Text()
		found, err := begin.Run(ctx, client, keys, lease, leaseTime.Milliseconds()).Text()
		if !errors.Is(err, goredis.Nil) {
			if strings.HasPrefix(found, leasePrefix) {
				err = errLeased
			}
			answer(c, []byte(found), err)
			return
		}
		body := s.pay(c)
		stored, err := finish.Run(ctx, client, keys, lease, body, resultTTL.Milliseconds()).Bool()
		if err == nil && !stored {
			err = errLeased
		}
		answer(c, body, err)
	}}, err
}
