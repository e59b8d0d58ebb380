package idemgin_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/gin-gonic/gin"
)

const benchBody = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"coffee"}`

func pay(c *gin.Context) {
	_, _ = io.Copy(io.Discard, c.Request.Body)
	c.Data(http.StatusCreated, "application/json", []byte(`{"id":"p1","amount":1250,"currency":"USD","status":"succeeded"}`))
}

// discard is a response writer that costs next to nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkMiddleware compares with the bare route what the middleware costs
// with in-process lock and token store.
func BenchmarkMiddleware(b *testing.B) {
	bare, protected := router(pay), router(protect(b), pay)
	for _, bm := range []struct {
		name    string
		handler http.Handler
		fresh   bool
	}{{"bare", bare, true}, {"fresh", protected, true}, {"replay", protected, false}} {
		b.Run(bm.name, func(b *testing.B) {
			b.ReportAllocs()
			template := httptest.NewRequest("POST", "/pay", nil)
			template.ContentLength = int64(len(benchBody))
			n := 0
			for b.Loop() {
				r := template.Clone(template.Context())
				r.Body = io.NopCloser(strings.NewReader(benchBody))
				r.Header = http.Header{"Content-Type": {"application/json"}, "Idempotency-Key": {"k"}}
				if bm.fresh {
					n++
					r.Header["Idempotency-Key"][0] = bm.name + strconv.Itoa(b.N) + "-" + strconv.Itoa(n)
				}
				bm.handler.ServeHTTP(&discard{make(http.Header)}, r)
			}
		})
	}
}
