package main

import (
	"context"
	"fmt"
	"net/http"
	"strings"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// A client without credentials cannot make the metrics grow, and with them the memory of this
// process and of Prometheus.
func TestInventedNamesMakeNoMetrics(t *testing.T) {
	t.Parallel()
	p := serve(t)
	series := func() string {
		_, text, err := p.request("GET", "/metrics", "", "")
		if err != nil {
			t.Fatal(err)
		}
		return text
	}
	conn, err := grpc.NewClient(p.grpc, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	invent := func(i int) {
		for _, path := range []string{"/v1/invented%d", "/v1/payments/invented%d", "/v1/accounts?invented%d", "/invented%d"} {
			req, err := http.NewRequestWithContext(t.Context(), fmt.Sprintf("INVENTED%d", i), p.url+fmt.Sprintf(path, i), nil)
			if err != nil {
				t.Fatal(err)
			}
			for _, method := range []string{req.Method, "GET", "POST"} {
				req.Method, req.Host, req.Close = method, fmt.Sprintf("invented%d.example:%d", i, 1000+i), true
				req.Header.Set("User-Agent", fmt.Sprintf("invented%d", i))
				req.Header.Set("Idempotency-Key", fmt.Sprintf("invented%d", i))
				res, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				_ = res.Body.Close()
			}
		}
		for _, method := range []string{"/invented%[1]d/m", "/payments.v1.PaymentService/Invented%[1]d"} {
			_ = conn.Invoke(context.Background(), fmt.Sprintf(method, i), &emptypb.Empty{}, &emptypb.Empty{})
		}
	}
	// A server counts a request when its client has the answer already, so the first ones may be counted late. Names that
	// made metrics would make more each time.
	names, before, after := 0, -1, ""
	for try := 0; strings.Count(after, "\n") != before; try++ {
		if try == 5 {
			t.Fatalf("%d lines of metrics after %d, in the fifth twenty names too", strings.Count(after, "\n"), before)
		}
		before = strings.Count(after, "\n")
		for range 20 {
			invent(names)
			names++
		}
		after = series()
	}
	if i := strings.Index(strings.ToLower(after), "invented"); i >= 0 {
		t.Errorf("an invented name is in the metrics: %q", after[max(0, i-100):min(len(after), i+100)])
	}
}
