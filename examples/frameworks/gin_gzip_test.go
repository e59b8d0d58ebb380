package frameworks_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/gin-contrib/gzip"
	"github.com/gin-gonic/gin"

	"github.com/idemkeeper/idemkeeper/idem"
	idemgin "github.com/idemkeeper/idemkeeper/middleware/gin"
	sqlstore "github.com/idemkeeper/idemkeeper/tokenstore/sql"
)

// A success whose COMMIT fails never reaches the client, behind a recovery and a compressor that would end its
// response as if it were whole.
func TestFailedCommitBehindRecoveryAndGzip(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2<<20)
	for name, answer := range map[string]gin.HandlerFunc{
		"short": func(c *gin.Context) { c.String(http.StatusCreated, "paid") },
		"long":  func(c *gin.Context) { c.String(http.StatusCreated, long) },
		"flushed": func(c *gin.Context) {
			c.String(http.StatusCreated, "paid")
			c.Writer.Flush()
			c.String(http.StatusCreated, long)
		},
		"event stream": func(c *gin.Context) {
			c.SSEvent("state", "paid")
			c.Writer.Flush()
		},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			engine, _ := joinedEngine(t)
			r := gin.New()
			r.Use(gin.RecoveryWithWriter(io.Discard), gzip.Gzip(gzip.DefaultCompression), idemgin.MustNew(engine, idem.Policy{AllowGlobalKeys: true, InDoubt: idem.LeaveUnknown()}))
			account := 2 // unknown, which COMMIT notices
			r.POST("/pay", func(c *gin.Context) {
				tx, err := sqlstore.Tx(c.Request.Context())
				if err == nil {
					_, err = tx.ExecContext(c.Request.Context(), "INSERT INTO payments VALUES (?)", account)
				}
				if err != nil {
					t.Errorf("payment: %v", err)
				}
				answer(c)
			})
			server := httptest.NewServer(r)
			t.Cleanup(server.Close)
			for _, want := range []int{http.StatusServiceUnavailable, http.StatusCreated} {
				req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, server.URL+"/pay", strings.NewReader(`{"amount":1}`))
				if err != nil {
					t.Fatal(err)
				}
				req.Header.Set("Content-Type", "application/json")
				req.Header.Set("Idempotency-Key", "order-1001")
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if want == http.StatusCreated && name == "event stream" {
					want = http.StatusOK
				}
				if resp.StatusCode != want || err != nil || strings.Contains(string(body), "paid") == (account == 2 || name == "long") {
					t.Errorf("account %d: answer = %d, %d bytes, %v, want %d", account, resp.StatusCode, len(body), err, want)
				}
				account = 1
			}
		})
	}
}
