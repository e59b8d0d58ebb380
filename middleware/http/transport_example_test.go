package idemhttp_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"strings"

	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

func ExampleNewTransport() {
	keys := map[string]int{}
	attempts := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys[r.Header.Get("Idempotency-Key")]++
		if attempts++; attempts == 1 {
			w.WriteHeader(http.StatusServiceUnavailable)
			return
		}
		w.WriteHeader(http.StatusCreated)
	}))
	defer server.Close()

	client := &http.Client{Transport: idemhttp.MustNewTransport(nil, idemhttp.WithKeysHonoured())}
	resp, err := client.Post(server.URL+"/v1/payments", "application/json", strings.NewReader(`{"amount":1250}`))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer resp.Body.Close()
	client.CloseIdleConnections()
	fmt.Println(resp.StatusCode, "after", attempts, "attempts with", len(keys), "key")
	// Output:
	// 201 after 2 attempts with 1 key
}
