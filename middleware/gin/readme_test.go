package idemgin_test

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
)

// The README's Go code with Gin is in this file, line by line, and so it compiles.
func TestREADMECodeCompiles(t *testing.T) {
	t.Parallel()
	lines := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(string(b), "")
	}
	source := lines("readme_test.go")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(lines("../../README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, block := range blocks { // the other one is in tests
		if strings.Contains(block[1], "gin.") && !strings.Contains(source, block[1]) {
			t.Errorf("not in readme_test.go:\n%s", block[1])
		}
	}
	if err := adopt(nil, nil, nil); err == nil {
		t.Error("an engine without a locker: no error")
	}
}

func adopt(locker idem.Locker, store idem.Store, authenticate gin.HandlerFunc) error {
	engine, err := idem.New(locker, store) // lock/zookeeper and tokenstore/redis, or lock/memory and tokenstore/memory
	if err != nil {
		return err
	}
	r := gin.New()
	r.Use(authenticate) // before the middleware: replays are authorised, too
	r.POST("/payments", idemgin.Middleware(engine, idem.Policy{
		Scope: func(ctx context.Context) (string, error) { // whose key it is
			return ctx.Value("merchant").(string), nil
		},
	}), createPayment)
	return nil
}

func createPayment(c *gin.Context) {
	ctx := c.Request.Context()                     // of the execution; c itself works, too
	x, _ := idem.FromContext(ctx)                  // x.OperationID, x.Attempt, x.Fence
	key, err := idem.DownstreamKey(ctx, "capture") // the key for the next system
	if err == nil {
		_, err = idem.CheckOwner(ctx)
	}
	if err != nil { // the lock may be gone: do not send
		c.AbortWithStatus(http.StatusServiceUnavailable)
		return
	}
	// the ledger's transaction keeps the highest x.Fence per operation, and refuses
	// a lower one: a holder that was paused too long (example-payments/ledger/fence.go)
	capturePayment(c, key, x.OperationID, x.Fence)
}

// capturePayment stands for the application's own code.
func capturePayment(*gin.Context, string, string, idem.Fence) {}
