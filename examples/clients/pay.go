// Command clients pays once, however often it has to ask: clients URL KEY. The files beside it do
// the same in other languages.
package main

import (
	"context"
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"strings"
	"time"

	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

func main() {
	log.SetFlags(0)
	url, key := os.Args[1], os.Args[2]
	body := fmt.Sprintf(`{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":%q}`, key)
	status, answer, err := post(context.Background(), url+"/v1/payments", key, body)
	if err != nil {
		log.Fatal(err)
	}
	_, _ = fmt.Fprintln(os.Stdout, answer)
	if status != http.StatusCreated {
		os.Exit(1)
	}
}

// client repeats a request with its key where that may help, for up to a minute. The server has
// to honour keys.
var client = &http.Client{Transport: idemhttp.MustNewTransport(http.DefaultTransport, idemhttp.WithKeysHonoured())}

func post(ctx context.Context, url, key, body string) (status int, answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, http.MethodPost, url, strings.NewReader(body)) //nolint:gosec // the caller chooses the server
	if err != nil {
		return 0, "", err
	}
	r.Header.Set("Idempotency-Key", key) // without this line the transport makes up a key
	r.Header.Set("Authorization", "Bearer demo")
	r.Header.Set("Content-Type", "application/json")
	resp, err := client.Do(r) //nolint:gosec // as above
	if err != nil {
		return 0, "", err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(text), err
}
