//go:build !race

package frameworks_test

import (
	"testing"
	"time"

	"github.com/gin-contrib/timeout"
	"github.com/gin-gonic/gin"
)

// gin-contrib/timeout changes a gin.Context that its goroutine still uses. So it races without Idemkeeper
// too, and the race detector is not for this test.

// A time-out inside that no check can name leaves the outcome in doubt, or rolled back. No repeat pays beside the first run.
func TestGinHiddenTimeoutGivesNoKeyBack(t *testing.T) {
	for answer, respond := range timeouts {
		limit := timeout.New(timeout.WithTimeout(time.Millisecond), timeout.WithResponse(respond))
		for mode, joined := range map[string]bool{"joined": true, "lock and store": false} {
			t.Run(answer+" "+mode, func(t *testing.T) {
				p := ginPayments(t, joined, func(protect gin.HandlerFunc) []gin.HandlerFunc {
					return []gin.HandlerFunc{protect, func(c *gin.Context) { limit(c) }}
				})
				p.payOnce()
			})
		}
	}
}
