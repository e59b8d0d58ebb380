package idemhttp_test

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"testing"

	"github.com/idemkeeper/idemkeeper/idem"
	idemhttp "github.com/idemkeeper/idemkeeper/middleware/http"
)

const benchBody = `{"from":"alice","to":"bob","amount":1250,"currency":"USD","note":"coffee"}`

func pay(w http.ResponseWriter, r *http.Request) {
	_, _ = io.Copy(io.Discard, r.Body)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	_, _ = io.WriteString(w, `{"id":"p1","amount":1250,"currency":"USD","status":"succeeded"}`)
}

// discard is a response writer that costs next to nothing.
type discard struct{ header http.Header }

func (d *discard) Header() http.Header         { return d.header }
func (d *discard) WriteHeader(int)             {}
func (d *discard) Write(p []byte) (int, error) { return len(p), nil }

// BenchmarkMiddleware compares with the bare handler what the middleware costs
// with in-process lock and token store.
func BenchmarkMiddleware(b *testing.B) {
	protected := idemhttp.MustNew(newEngine(b), idem.Policy{Scope: merchant, Name: "POST /pay", InDoubt: idem.LeaveUnknown()})(http.HandlerFunc(pay))
	for _, bm := range []struct {
		name    string
		handler http.Handler
		fresh   bool
	}{{"bare", http.HandlerFunc(pay), true}, {"fresh", protected, true}, {"replay", protected, false}} {
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
