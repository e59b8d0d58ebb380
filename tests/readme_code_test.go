package tests

import (
	"context"
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// The Go code of the README is in this file, line by line, and so it compiles.
func TestREADMECodeCompiles(t *testing.T) {
	t.Parallel()
	lines := func(file string) string {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		return regexp.MustCompile(`(?m)^[ \t]+`).ReplaceAllString(string(b), "")
	}
	source := lines("readme_code_test.go")
	blocks := regexp.MustCompile("(?s)```go\n(.*?)```").FindAllStringSubmatch(lines("../README.md"), -1)
	if len(blocks) == 0 {
		t.Fatal("the README has no Go code")
	}
	for _, block := range blocks {
		if !strings.Contains(source, block[1]) {
			t.Errorf("not in readme_code_test.go:\n%s", block[1])
		}
	}
	for name, err := range map[string]error{
		"the server":        adopt(nil, nil, nil),
		"gRPC and a client": adoptGRPC(nil, nil, nil, nil, "localhost"),
	} {
		if err == nil {
			t.Errorf("%s without an engine: no error", name)
		}
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

func adoptGRPC(engine *idem.Engine, merchant idem.ScopeFunc, authenticate grpc.UnaryServerInterceptor, creds credentials.TransportCredentials, target string) error {
	interceptors, err := idemgrpc.New(engine,
		idemgrpc.WithPolicy("/payments.v1.PaymentService/CreatePayment", idem.Policy{Scope: merchant}))
	if err != nil {
		return err
	}
	server := grpc.NewServer(grpc.ChainUnaryInterceptor(authenticate, interceptors.Unary()),
		grpc.StreamInterceptor(interceptors.Stream()))

	conn, err := grpc.NewClient(target, grpc.WithTransportCredentials(creds),
		grpc.WithUnaryInterceptor(idemgrpc.UnaryClientInterceptor())) // one key per call
	client := &http.Client{Transport: idemhttp.NewTransport(http.DefaultTransport)} // likewise
	_, _, _ = server, conn, client
	return err
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
