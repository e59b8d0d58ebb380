package around

import (
	"bytes"
	"compress/gzip"
	"net/http"
	"strings"
	"testing"
)

// decompress hands a compressed request on as its client would have sent it without compression.
func decompress(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Content-Encoding") == "gzip" {
			plain, err := gzip.NewReader(r.Body)
			if err != nil {
				http.Error(w, "the body is no gzip", http.StatusBadRequest)
				return
			}
			r.Body, r.ContentLength = plain, -1
			r.Header.Del("Content-Encoding")
			r.Header.Del("Content-Length")
		}
		next.ServeHTTP(w, r)
	})
}

// zipped compresses a text.
func zipped(t *testing.T, text string, level int) string {
	t.Helper()
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, level)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := z.Write([]byte(text)); err != nil {
		t.Fatal(err)
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// A repeat may be compressed in another way, or not at all, if the service decompresses in front of the middleware.
// Otherwise it has to be the same bytes.
func TestDecompression(t *testing.T) {
	t.Parallel()
	plain, gzipped := with("Idempotency-Key", "order-1001"), with("Idempotency-Key", "order-1001", "Content-Encoding", "gzip")
	fast, small := zipped(t, order, gzip.NoCompression), zipped(t, order, gzip.BestCompression)
	for name, tt := range map[string]struct {
		outside func(http.Handler) http.Handler
		stored  string // what the handler reads
		other   int    // the answer to a repeat with other bytes
	}{
		"in front": {decompress, order, 201},
		"inside":   {nil, fast, 422},
	} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			s := &service{T: t, outside: tt.outside}
			s.start()
			url := "http://" + s.addrs[0] + "/payments"
			for i, tr := range []struct {
				body   string
				header http.Header
				status int
			}{{fast, gzipped, 201}, {fast, gzipped, 201}, {small, gzipped, tt.other}, {order, plain, tt.other}, {`{"amount":9}`, plain, 422}} {
				a := send(t, http.MethodPost, url, tr.body, tr.header)
				if replayed := tr.status == 201 && i > 0; a.status != tr.status || a.replayed != replayed || a.status == 201 && a.body != tt.stored {
					t.Errorf("request %d = %+v, want %d, replayed %v", i, a, tr.status, replayed)
				}
			}
			s.want(5, 1)
		})
	}
}

// The middleware bounds what a body is decompressed to.
func TestDecompressionIsBounded(t *testing.T) {
	t.Parallel()
	s := &service{T: t, outside: decompress}
	s.start()
	bomb := zipped(t, `"`+strings.Repeat("0", 2<<20)+`"`, gzip.BestCompression)
	a := send(t, http.MethodPost, "http://"+s.addrs[0]+"/payments", bomb, with("Idempotency-Key", "order-1001", "Content-Encoding", "gzip"))
	if a.status != 413 {
		t.Errorf("a body that grows to 2 MiB = %+v, want 413", a)
	}
	s.want(1, 0)
}
