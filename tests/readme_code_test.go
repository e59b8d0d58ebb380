package tests

import (
	"net/http"
	"os"
	"regexp"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgrpc "github.com/idemkeeper/idemkeeper/middleware/grpc"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

// The README's Go code without Gin is in this file, line by line, and so it compiles.
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
	for _, block := range blocks { // that with Gin is in middleware/gin
		if !strings.Contains(block[1], "gin.") && !strings.Contains(source, block[1]) {
			t.Errorf("not in readme_code_test.go:\n%s", block[1])
		}
	}
	if err := adoptGRPC(nil, nil, nil, nil, "localhost"); err == nil {
		t.Error("gRPC without an engine: no error")
	}
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
	used(server, conn, client)
	return err
}

// used is for what a snippet makes and shows no use of.
func used(...any) {}
